"""`scorelane model show`: what it says of a package, and which packages it does not pass."""

from pathlib import Path

import pytest

from engines.package import Package, write_package
from schemas.spec import ModelSpec
from tests.models import tiny_package
from tests.worker.test_cli import scorelane, write_config

TABLE = ModelSpec.parse(
    b'event = "custom"\nfeatures = [{ name = "room", table = "room.npy", shape = [4], default = 0 }]', "spec.toml"
)


def test_show_verifies_a_package_and_says_what_it_holds(tmp_path: Path) -> None:
    package = tiny_package(tmp_path, "criteo", name="ads")
    ran = scorelane("model", "show", tmp_path / "ads")
    assert (ran.returncode, ran.stderr) == (0, "")
    first, *lines = ran.stdout.splitlines()
    assert first == f"ads 1 (mlp) in {package.path}"
    assert "  input   dense float32 [13]" in lines and "  metric  base_rate = 0.25" in lines


def other_spec(tmp_path: Path) -> Package:
    """The models' input is `dense`, the spec's tensor `numbers`."""
    made = tiny_package(tmp_path / "made", "criteo")
    files = {name: made.file(name).read_bytes() for name in made.manifest.files}
    files["spec.toml"] = files["spec.toml"].replace(b'"dense"', b'"numbers"')
    return write_package(tmp_path / "models", name="tiny", version="1", kind="mlp", files=files)


def no_table(tmp_path: Path) -> Package:
    return tiny_package(tmp_path / "models", TABLE)


def broken_light(tmp_path: Path) -> Package:
    made = tiny_package(tmp_path / "made")
    files = {name: made.file(name).read_bytes() for name in made.manifest.files} | {"light.npz": b"nothing"}
    return write_package(tmp_path / "models", name="tiny", version="1", kind="mlp", files=files)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (other_spec, "model.onnx: inputs are ['dense', 'ids'], the spec's tensors are ['ids', 'numbers']; "),
        (no_table, "room.npy"),
        (broken_light, "light.npz: "),
    ],
)
def test_show_says_of_a_package_that_cannot_run_what_check_says(make, said: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    package = make(tmp_path)
    shown = scorelane("model", "show", package.path)
    assert (shown.returncode, shown.stdout) == (2, "")
    [line] = shown.stderr.splitlines()
    assert said in line
    config = write_config(tmp_path, model="models/tiny", engine="ort", fallback=["light"])
    checked = scorelane("check", "--config", config)
    assert checked.returncode == 2
    problem = line.removeprefix("scorelane: ").rpartition("; ")[0]
    assert problem in checked.stderr
