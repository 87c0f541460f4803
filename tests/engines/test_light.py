"""The light model against arithmetic written out row by row in double precision."""

import io
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import engines
from engines.base import Engine, Scores, run
from engines.errors import LoadError, RunError
from engines.light import LightEngine
from engines.package import Package, write_package
from schemas.rows import Tensors
from tests.engines.contract import EngineContract
from tests.models import random_batch, tiny_package

SPEC = b"""
event = "custom"
features = [
    { name = "a", tensor = "dense" },
    { name = "b", tensor = "dense" },
    { name = "room", tensor = "ids", ids = 3 },
    { name = "gift", tensor = "ids", ids = 2 },
    { name = "hist", ids = 4, shape = [3], pad = true },
]
"""
WEIGHTS: dict[str, NDArray[np.generic]] = {
    "bias": np.array(0.5, np.float32),
    "dense.low": np.array([-10, -1], np.float32),
    "dense.high": np.array([10, 1], np.float32),
    "dense.weight": np.array([2, 3], np.float32),
    "ids.table": np.array([0.1, 0.2, 0.3, 0.01, 0.02], np.float32),
    "ids.offset": np.array([0, 3], np.int64),
    "ids.pool": np.array(False),
    "hist.table": np.array([0, 1, 2, 4], np.float32),
    "hist.offset": np.zeros(3, np.int64),
    "hist.pool": np.array(True),
}


def light_package(directory: Path, weights: dict[str, NDArray[np.generic]]) -> Package:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **weights)
    files = {"light.npz": buffer.getvalue(), "spec.toml": SPEC}
    return write_package(directory, name="hand", version="1", kind="lr", files=files)


def by_hand(package: Package, batch: Tensors) -> Scores:
    weights = dict(np.load(package.file("light.npz")))
    scores = []
    for i in range(len(next(iter(batch.values())))):
        logit = float(weights["bias"])
        for name, tensor in batch.items():
            row = tensor[i].ravel().tolist()
            if f"{name}.weight" in weights:
                parts = (weights[f"{name}.{part}"].ravel().tolist() for part in ("low", "high", "weight"))
                for x, low, high, weight in zip(row, *parts, strict=True):
                    logit += weight * min(max(math.copysign(math.log1p(abs(x)), x), low), high)
            else:
                table, offset = weights[f"{name}.table"].tolist(), weights[f"{name}.offset"].ravel().tolist()
                entries = [table[start + x] for start, x in zip(offset, row, strict=True)]
                present = sum(x != 0 for x in row)
                logit += sum(entries) / (max(present, 1) if weights[f"{name}.pool"] else 1)
        scores.append(1 / (1 + math.exp(-logit)))
    return np.array(scores, np.float32)


class TestContract(EngineContract):
    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("light", package, max_batch=max_batch)

    def reference(self, package: Package, batch: Tensors) -> Scores:
        return by_hand(package, batch)


def test_hand_worked_scores(tmp_path: Path) -> None:
    session = LightEngine(light_package(tmp_path, WEIGHTS), max_batch=3).open_session()
    batch: Tensors = {
        "dense": np.array([[0, 0], [math.e - 1, -100], [1 - math.e, 100]], np.float32),
        "ids": np.array([[0, 0], [2, 1], [1, 0]], np.int32),
        "hist": np.array([[0, 0, 0], [1, 2, 0], [3, 3, 1]], np.int32),
    }
    logits = [
        0.5 + 0.1 + 0.01,  # no history weighs nothing
        0.5 + 2 * 1 + 3 * -1 + 0.3 + 0.02 + (1 + 2) / 2,  # the second number is held at its low
        0.5 + 2 * -1 + 3 * 1 + 0.2 + 0.01 + (4 + 4 + 1) / 3,
    ]
    expected = [1 / (1 + math.exp(-logit)) for logit in logits]
    np.testing.assert_allclose(run(session, batch), expected, atol=1e-6)


@pytest.mark.parametrize("spec", ["criteo", "avazu", "alimama", "ad"])
def test_every_spec_is_scored_as_by_hand(tmp_path: Path, spec: str) -> None:
    package = tiny_package(tmp_path, spec)
    batch = random_batch(package.spec, 20)
    scores = run(LightEngine(package).open_session(), batch)
    np.testing.assert_allclose(scores, by_hand(package, batch), atol=1e-6)


@pytest.fixture(scope="module")
def tipping(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tiny_package(tmp_path_factory.mktemp("light"))


@settings(max_examples=60)
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False), column=st.integers(0, 34))
def test_any_finite_number_gives_a_probability(tipping: Package, value: float, column: int) -> None:
    batch = random_batch(tipping.spec, 2)
    batch["dense"][0, column] = value
    scores = run(LightEngine(tipping).open_session(), batch)
    assert ((scores >= 0) & (scores <= 1)).all()
    np.testing.assert_allclose(scores, by_hand(tipping, batch), atol=1e-6)


def test_extreme_logits_neither_overflow_nor_leave_the_unit_interval(tmp_path: Path) -> None:
    weights = {**WEIGHTS, "ids.table": np.array([-1e30, 1e30, 0, 0, 0], np.float32)}
    session = LightEngine(light_package(tmp_path, weights)).open_session()
    batch: Tensors = {
        "dense": np.zeros((2, 2), np.float32),
        "ids": np.array([[0, 0], [1, 0]], np.int32),
        "hist": np.zeros((2, 3), np.int32),
    }
    low, high = run(session, batch)
    assert 0 < low < 1e-12 and high == 1.0


def test_id_outside_the_table_fails_the_batch_only(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    session = LightEngine(package).open_session()
    batch = random_batch(package.spec, 4)
    with pytest.raises(RunError, match="ids"):
        session.submit({**batch, "ids": np.full((4, 4), 10**6, np.int32)})
    np.testing.assert_allclose(run(session, batch), by_hand(package, batch), atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bias", None, "bias is missing"),
        ("dense.weight", np.zeros(3, np.float32), "dense.weight is float32"),
        ("dense.weight", np.zeros(2, np.float64), "dense.weight is float64"),
        ("dense.weight", np.array([1, np.nan], np.float32), "dense.weight is not finite"),
        ("ids.offset", np.array([0, 5], np.int64), "leaves the table"),
        ("ids.offset", np.array([-1, 0], np.int64), "leaves the table"),
        ("hist.table", np.ones(4, np.float32), "weight 0 for id 0"),
    ],
)
def test_arrays_that_do_not_fit_are_not_loaded(
    tmp_path: Path, key: str, value: NDArray[np.generic] | None, message: str
) -> None:
    weights = {name: array for name, array in {**WEIGHTS, key: value}.items() if array is not None}
    with pytest.raises(LoadError, match=message) as caught:
        LightEngine(light_package(tmp_path, weights))
    assert "light.npz" in str(caught.value) and "train" in str(caught.value)


def npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def damaged() -> bytes:
    """An archive whose array has a header that no longer parses."""
    buffer, whole = io.BytesIO(), npy()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("bias.npy", whole[:12] + b"'" * 8 + whole[20:])
    return buffer.getvalue()


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 and then nothing", b"\x80\x04N.", npy(), damaged()])
def test_file_that_is_no_archive_is_not_loaded(tmp_path: Path, data: bytes) -> None:
    files = {"light.npz": data, "spec.toml": SPEC}
    package = write_package(tmp_path, name="broken", version="1", kind="lr", files=files)
    with pytest.raises(LoadError, match="not a light model"):
        LightEngine(package)
