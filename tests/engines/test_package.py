"""Packages on disk: digests, versions, atomic writes, and what the engines import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import engines
from engines.errors import LoadError
from engines.package import MANIFEST, Package, natural_key, write_package
from tests.models import tiny_package


def test_written_package_opens_with_what_was_written(tmp_path: Path) -> None:
    written = tiny_package(tmp_path, "criteo", "lr", name="ads", version="7")
    package = Package.open(tmp_path / "ads" / "7")
    assert package == written
    assert (package.name, package.version, package.manifest.kind) == ("ads", "7", "lr")
    assert [tensor.name for tensor in package.spec.tensors] == ["dense", "ids"]
    assert package.file("model.onnx").read_bytes()
    assert {path.name for path in package.path.iterdir()} == {MANIFEST, "model.onnx", "light.npz", "spec.toml"}


def test_model_directory_gives_its_newest_version(tmp_path: Path) -> None:
    for version in ("1.9", "1.10", "1.2"):
        tiny_package(tmp_path, version=version)
    (tmp_path / "tiny" / "2.0").mkdir()  # without a manifest it is no version
    (tmp_path / "tiny" / ".3.0.partial").mkdir()
    assert Package.open(tmp_path / "tiny").version == "1.10"


def test_natural_order() -> None:
    versions = ["10", "9", "1.10", "1.9", "v2", "v10", "1"]
    assert sorted(versions, key=natural_key) == ["1", "1.9", "1.10", "9", "10", "v2", "v10"]


def test_one_changed_byte_is_found_and_named(tmp_path: Path) -> None:
    path = tiny_package(tmp_path).file("model.onnx")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LoadError, match=r"model\.onnx: sha256 is .*copy the package again"):
        Package.open(path.parent)


def test_lost_file_is_named(tmp_path: Path) -> None:
    path = tiny_package(tmp_path).file("light.npz")
    path.unlink()
    with pytest.raises(LoadError, match=r"light\.npz: listed in manifest\.json .*copy the package again"):
        Package.open(path.parent)


def test_files_beside_the_manifest_are_left_alone(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    (package.path / "plans").mkdir()
    (package.path / "plans" / "10.6.0-sm90.plan").write_bytes(b"plan")
    assert Package.open(package.path) == package


def test_part_that_was_not_trained_is_named(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    assert not package.has("trees.onnx")
    with pytest.raises(LoadError, match=r"trees\.onnx: not in the package, which has light\.npz, model\.onnx"):
        engines.load("trees", package)


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "", ".hidden", "a/b"])
def test_manifest_cannot_name_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    package = tiny_package(tmp_path)
    manifest = json.loads((package.path / MANIFEST).read_bytes())
    manifest["files"][name] = "0" * 64
    (package.path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(LoadError, match="not a plain file name"):
        Package.open(package.path)


@pytest.mark.parametrize("content", ["", "[]", '{"name": 1}', "\udcff", '{"more":' + "[" * 100_000])
def test_broken_manifest_is_refused(tmp_path: Path, content: str) -> None:
    package = tiny_package(tmp_path)
    (package.path / MANIFEST).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(LoadError, match="not a manifest"):
        Package.open(package.path)


UNKNOWN_KEY = b'event = "custom"\nfeatures = [{ name = "carrier", vocabulary = ["a"], unknow = "refuse" }]\n'


@pytest.mark.parametrize(
    ("files", "metrics", "said"),
    [
        ({"model.onnx": b"x"}, {}, "manifest.json: files: neither spec.toml nor spec.json; "),
        ({"spec.toml": b'event = "custom"\nfeatures = []\n'}, {}, "spec.toml: features: "),
        ({"spec.toml": UNKNOWN_KEY}, {}, "spec.toml: features.carrier.unknow: "),
        ({"spec.toml": UNKNOWN_KEY.replace(b"unknow", b"unknown")}, {"auc": float("nan")}, "manifest.json: not a "),
    ],
)
def test_what_would_not_open_is_not_written(
    files: dict[str, bytes], metrics: dict[str, float], said: str, tmp_path: Path
) -> None:
    good = tiny_package(tmp_path, version="1")
    with pytest.raises(LoadError) as caught:
        write_package(tmp_path, name="tiny", version="2", kind="none", files=files, metrics=metrics)
    assert str(caught.value).startswith(f"{tmp_path / 'tiny' / '2'}/{said}")
    assert list((tmp_path / "tiny").iterdir()) == [good.path]
    assert Package.open(tmp_path / "tiny") == good


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_place_without_package_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadError, match=f"{place}: .*give models/<name>"):
        Package.open(tmp_path / place)


def test_version_is_never_overwritten(tmp_path: Path) -> None:
    package = tiny_package(tmp_path, seed=0)
    before = package.file("model.onnx").read_bytes()
    with pytest.raises(LoadError, match="this version exists"):
        tiny_package(tmp_path, seed=1)
    assert package.file("model.onnx").read_bytes() == before


def test_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(LoadError, match="No space left"):
        tiny_package(tmp_path)
    assert list((tmp_path / "tiny").iterdir()) == []


@pytest.mark.parametrize(("name", "version"), [("../x", "1"), ("x", "a/b"), ("x", ""), (".x", "1")])
def test_name_and_version_are_plain_words(tmp_path: Path, name: str, version: str) -> None:
    with pytest.raises(LoadError, match="cannot be used"):
        tiny_package(tmp_path, name=name, version=version)


def test_unknown_engine_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="'tensorflow' is unknown; choose one of ort, light"):
        engines.load("tensorflow", tiny_package(tmp_path))


@pytest.mark.parametrize(
    ("kind", "allowed"), [("light", set()), ("constant", set()), ("ort", {"onnxruntime"})], ids=lambda value: str(value)
)
def test_engine_imports_no_more_than_it_runs_on(tmp_path: Path, kind: str, allowed: set[str]) -> None:
    package = tiny_package(tmp_path)
    script = (
        "import sys, engines\n"
        "from engines.package import Package\n"
        f"engines.load({kind!r}, Package.open({str(package.path)!r})).open_session()\n"
        "print(*sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"jax", "jaxlib", "optax", "lightgbm", "onnx", "onnxruntime", "tensorrt", "pycuda", "scipy", "torch"}
    assert heavy & set(ran.stdout.split()) == allowed
