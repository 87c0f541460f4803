"""The trainer: what it learns, what it writes, what it refuses; streams, splits and measures underneath."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engines
from engines.base import run
from engines.errors import LoadError
from engines.package import Package
from engines.train import datasets
from engines.train.datasets import FILES, Dataset, load, split
from engines.train.measure import auc, log_loss
from engines.train.streams import ads, tips
from engines.train.train import train_model
from schemas.decoder import Decoder
from schemas.encoder import Encoder
from schemas.spec import builtin
from tests.models import random_batch


def number(package: Package, key: str) -> float:
    value = package.manifest.metrics[key]
    assert isinstance(value, int | float)
    return value


def test_mlp_learns_what_a_regression_cannot(tmp_path: Path) -> None:
    package = train_model("tipping", "mlp", tmp_path, rows=12_000, version="1", seed=0)
    assert package.path == tmp_path / "tipping" / "1"
    assert number(package, "model_auc") > number(package, "light_auc") + 0.05
    assert number(package, "light_auc") > 0.57
    assert number(package, "trees_auc") > number(package, "light_auc")
    for part in ("model", "light", "trees"):
        assert number(package, f"{part}_log_loss") < number(package, "base_log_loss")
        assert number(package, f"{part}_parity") <= 1e-5
    assert number(package, "rows_trained") == 9600 and number(package, "rows_held_out") == 2400
    assert "synthetic" in package.manifest.note and "few rows" not in package.manifest.note
    batch = random_batch(package.spec, 8)
    for kind in ("ort", "light", "trees", "constant"):
        assert run(engines.load(kind, package).open_session(), batch).shape == (8,)


def test_din_learns_that_the_target_is_in_the_history(tmp_path: Path) -> None:
    package = train_model("ad", "din", tmp_path, rows=8000, name="ads", version="1")
    assert package.name == "ads"
    assert number(package, "model_auc") > number(package, "light_auc") + 0.05


@pytest.mark.parametrize(("sample", "kind"), [("criteo", "mlp"), ("avazu", "lr"), ("alimama", "din")])
def test_public_samples_are_trained_and_the_manifest_owns_up(tmp_path: Path, sample: str, kind: str) -> None:
    package = train_model(sample, kind, tmp_path, epochs=2)  # type: ignore[arg-type]
    assert (package.name, package.manifest.kind) == (sample, kind)
    assert set(package.manifest.files) == {"model.onnx", "light.npz", "trees.onnx", "spec.toml"}
    assert "mean little" in package.manifest.note
    for part in ("model", "light", "trees"):
        assert number(package, f"{part}_parity") <= 1e-5


def test_din_needs_a_sequence(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="'tipping' has no sequence to attend to; choose lr or mlp"):
        train_model("tipping", "din", tmp_path)


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="kind 'dcn' is unknown; choose one of lr, mlp, din"):
        train_model("tipping", "dcn", tmp_path)  # type: ignore[arg-type]


def test_unknown_sample_is_refused() -> None:
    with pytest.raises(LoadError, match="'movielens' is unknown; choose one of criteo, avazu, alimama, tipping, ad"):
        load("movielens")


def test_file_for_a_synthetic_sample_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="synthetic and reads no file"):
        load("tipping", data=tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file.*give the file of the sample 'criteo' with --data FILE"),
        ("label,I1\n2,1\n", "row 1: label: '2' is not 0 or 1"),
        ("I1\n2\n", "row 1: label: 'missing' is not 0 or 1"),
        ("label,I1\n1,1\n0\n", "line 3: 1 cells under 2 columns"),
        ("label,I1\n1,x\n", "criteo: .*I1.*correct the row"),
        ("label,I1\n0,1\n1,1e39\n", "criteo: row 2: .*I1"),
    ],
)
def test_bad_file_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "rows.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(LoadError, match=message):
        load("criteo", data=path)


def test_code_that_is_installed_without_the_samples_reads_those_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "_SOURCE_TREE", tmp_path / "site-packages")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LoadError, match=r"^tests/data/criteo_sample\.txt: cannot be read: .* with --data FILE$"):
        load("criteo")
    (tmp_path / "tests" / "data").mkdir(parents=True)
    (tmp_path / "tests" / "data" / FILES["criteo"]).write_text("label,I1\n0,1\n1,2\n")
    assert load("criteo").labels.tolist() == [0, 1]


def test_samples_have_the_rows_and_labels_of_their_files() -> None:
    counts = {sample: (len(found := load(sample)), int(found.labels.sum())) for sample in FILES}
    assert counts == {"criteo": (200, 49), "avazu": (100, 20), "alimama": (99, 2)}
    assert len(load("criteo", rows_wanted=30)) == 30


def test_split_parts_are_apart_whole_and_stratified() -> None:
    labels = np.array([1] * 10 + [0] * 90, np.float32)
    training, held_out = split(Dataset({"row": np.arange(100)}, labels), seed=1)
    assert sorted([*training.tensors["row"], *held_out.tensors["row"]]) == list(range(100))
    assert (len(training), training.labels.sum(), len(held_out), held_out.labels.sum()) == (80, 8, 20, 2)
    np.testing.assert_array_equal(held_out.labels, held_out.tensors["row"] < 10)


def test_one_class_cannot_be_split() -> None:
    with pytest.raises(LoadError, match="1 of 3 rows have label 1; give more rows"):
        split(Dataset({"row": np.arange(3)}, np.array([0, 1, 0], np.float32)), seed=0)


@pytest.mark.parametrize(("stream", "spec"), [(tips, "tipping"), (ads, "ad")])
def test_stream_is_valid_events_and_the_same_for_a_seed(stream: object, spec: str) -> None:
    assert callable(stream)
    labelled = list(stream(1500, 7))
    assert labelled == list(stream(1500, 7))
    assert labelled[:100] != list(stream(100, 8))
    for wire in ("msgpack", "json"):
        encoder = Encoder(builtin(spec), wire)  # type: ignore[arg-type]
        rows = Decoder(builtin(spec), wire).decode([encoder.encode(row) for row, _ in labelled])  # type: ignore[arg-type]
        assert not rows.invalid and len(rows) == 1500
        assert len(set(rows.keys)) == 1500
        assert (np.diff(rows.event_time_ms) >= 0).all()
    assert 0.15 < np.mean([label for _, label in labelled]) < 0.4


def test_auc_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 0, 1.0])
    scores = np.array([0.1, 0.4, 0.35, 0.8, 0.35, 0.4])
    # pairs won: 0.35 over 0.1, ties 0.35, under 0.4: 1.5; 0.8 wins all 3; 0.4 over 0.1 and 0.35, ties 0.4: 2.5
    assert auc(labels, scores) == pytest.approx(7 / 9)
    assert np.isnan(auc(np.ones(3), np.ones(3)))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40))
def test_auc_is_the_share_of_pairs_in_order(rows: list[tuple[bool, int]]) -> None:
    wins = [(p > q) + 0.5 * (p == q) for a, p in rows if a for b, q in rows if not b]
    labels, scores = (np.array(column, float) for column in zip(*rows, strict=True))
    result = auc(labels, scores)
    assert result == pytest.approx(np.mean(wins)) if wins else np.isnan(result)


def test_log_loss_by_hand() -> None:
    loss = log_loss(np.array([1.0, 0.0]), np.array([0.8, 0.4]))
    assert loss == pytest.approx(-(np.log(0.8) + np.log(0.6)) / 2)
    assert np.isfinite(log_loss(np.array([1.0]), np.array([0.0])))


def test_streams_need_no_training_library() -> None:
    script = "import sys, engines.train.streams, engines.train.datasets; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"jax", "optax", "lightgbm", "onnx"} & set(ran.stdout.split())
