"""Boosted trees with regression leaves: the ONNX ensemble against LightGBM's own leaves and the weights."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engines
from engines.base import Engine, Scores, run
from engines.package import Package, write_package
from engines.train.datasets import PAIRS
from engines.train.gbdt import Trees, _not_above, fit_trees, predict_trees, tree_columns, trees_to_onnx
from engines.train.layout import Layout
from engines.trees import TreesEngine
from schemas.rows import Tensors
from schemas.spec import builtin
from tests.engines.contract import EngineContract
from tests.models import random_batch


def trained(sample: str, rows: int = 600) -> Trees:
    """Trees on random rows whose label hangs on the first number and on the first id."""
    spec = builtin(sample)
    tensors = random_batch(spec, rows, seed=1)
    rng = np.random.default_rng(2)
    first = tensors["dense"][:, 0] > np.median(tensors["dense"][:, 0])
    ids = next(tensor for tensor in tensors.values() if tensor.dtype == np.int32)
    labels = (rng.random(rows) < 0.15 + 0.5 * first + 0.3 * (ids[:, 0] % 2)).astype(np.float32)
    return fit_trees(Layout.of(spec, PAIRS.get(sample)), tensors, labels, trees=8, leaves=7, seed=3)


def written(directory: Path, sample: str, model: Trees) -> Package:
    files = {"trees.onnx": trees_to_onnx(model), "spec.toml": builtin(sample).dumps()}
    return write_package(directory, name="trees", version="1", kind="trees", files=files)


@pytest.fixture(scope="module")
def tipping() -> Trees:
    return trained("tipping")


class TestContract(EngineContract):
    @pytest.fixture
    def package(self, tmp_path: Path, tipping: Trees) -> Package:
        self.model = tipping
        return written(tmp_path, "tipping", tipping)

    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("trees", package, max_batch=max_batch)

    def reference(self, package: Package, batch: Tensors) -> Scores:
        return predict_trees(self.model, batch).astype(np.float32)


@pytest.mark.parametrize("sample", ["tipping", "alimama", "ad"])
def test_scores_are_those_of_the_leaves(tmp_path: Path, sample: str) -> None:
    model = trained(sample)
    assert len(model.sizes) == 8 and max(model.sizes) > 2
    package = written(tmp_path, sample, model)
    batch = random_batch(package.spec, 500, seed=4)
    scores = run(TreesEngine(package, max_batch=500).open_session(), batch)
    np.testing.assert_allclose(scores, predict_trees(model, batch), atol=1e-6)
    assert len(np.unique(scores)) > 10


def test_rows_that_lie_on_a_threshold_go_the_same_way(tmp_path: Path, tipping: Trees) -> None:
    """A split's threshold is a double; every float32 just below, at and above it must fall as LightGBM says."""
    batch = random_batch(builtin("tipping"), 1)
    rows = []

    def walk(node: dict[str, object]) -> None:
        if "split_index" not in node:
            return
        column, threshold = int(str(node["split_feature"])), float(str(node["threshold"]))
        if column < 35:  # the numbers: the other columns are made from ids
            near = np.float32(threshold)
            rows.extend((column, value) for value in (near, *(np.nextafter(near, np.float32(e)) for e in (-9e9, 9e9))))
        for side in ("left_child", "right_child"):
            child = node[side]
            assert isinstance(child, dict)
            walk(child)

    for tree in tipping.booster.dump_model()["tree_info"]:
        walk(tree["tree_structure"])
    assert len(rows) > 20
    many = {name: np.repeat(tensor, len(rows), axis=0) for name, tensor in batch.items()}
    for i, (column, value) in enumerate(rows):
        many["dense"][i, column] = value
    session = TreesEngine(written(tmp_path, "tipping", tipping), max_batch=len(rows)).open_session()
    np.testing.assert_allclose(run(session, many), predict_trees(tipping, many), atol=1e-6)


@given(
    threshold=st.floats(allow_nan=False, allow_infinity=False),
    value=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
def test_rounded_threshold_splits_every_float32_alike(threshold: float, value: float) -> None:
    assert (value <= threshold) == (value <= _not_above(threshold))


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_threshold_that_is_a_float32_stays(value: float) -> None:
    assert _not_above(value) == value
    assert _not_above(np.nextafter(value, -np.inf)) <= value


def test_columns_count_histories_and_matches() -> None:
    layout = Layout.of(builtin("alimama"), PAIRS["alimama"])
    batch = random_batch(builtin("alimama"), 3, seed=5)
    for name in ("hist_cate", "hist_brand", "hist_btag"):
        batch[name][:] = 0
    batch["cate"][:, 0], batch["brand"][:, 0] = [7, 8, 9], [1, 2, 3]
    batch["hist_cate"][0, :4] = [7, 8, 7, 7]
    batch["hist_brand"][1, :2] = [2, 9]
    rates = {ids.name: np.zeros(ids.total, np.float32) for ids in layout.ids}
    columns = tree_columns(layout, rates, batch)
    lengths, matches = columns[:, -5:-2], columns[:, -2:]
    np.testing.assert_array_equal(lengths, [[4, 0, 0], [0, 2, 0], [0, 0, 0]])
    np.testing.assert_array_equal(matches, [[3, 0], [0, 1], [0, 0]])
