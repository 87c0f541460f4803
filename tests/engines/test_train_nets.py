"""Nets: JAX, the exported ONNX and the light model compute the same; attention does what it promises."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from engines.base import run
from engines.errors import LoadError
from engines.light import LightEngine
from engines.ort import OrtEngine
from engines.package import Package, write_package
from engines.train.datasets import PAIRS
from engines.train.export import to_light, to_onnx
from engines.train.fit import fit, predict
from engines.train.layout import Layout, Pair
from engines.train.params import Kind, Net, Params
from engines.train.reference import reference_package
from schemas.spec import ModelSpec, builtin
from tests.models import random_batch, tiny_net

EVERY = [
    ("tipping", "lr"),
    ("tipping", "mlp"),
    ("criteo", "mlp"),
    ("avazu", "lr"),
    ("alimama", "lr"),
    ("alimama", "mlp"),
    ("alimama", "din"),
    ("ad", "din"),
]


def written(directory: Path, sample: str, net: Net, params: Params) -> Package:
    files = {"model.onnx": to_onnx(net, params), "spec.toml": builtin(sample).dumps()}
    if net.kind == "lr":
        files["light.npz"] = to_light(net, params)
    return write_package(directory, name="net", version="1", kind=net.kind, files=files)


@pytest.mark.parametrize(("sample", "kind"), EVERY)
def test_engines_compute_what_jax_computes(tmp_path: Path, sample: str, kind: Kind) -> None:
    net, params = tiny_net(builtin(sample), kind, 1, PAIRS.get(sample))
    package = written(tmp_path, sample, net, params)
    batch = random_batch(package.spec, 200, seed=2)
    expected = predict(net, params, batch)
    assert len(np.unique(expected)) > 150
    np.testing.assert_allclose(run(OrtEngine(package).open_session(), batch), expected, atol=1e-5)
    if kind == "lr":
        np.testing.assert_allclose(run(LightEngine(package).open_session(), batch), expected, atol=1e-5)


@pytest.mark.parametrize(("sample", "kind"), EVERY)
def test_graph_is_plain_onnx_with_a_free_batch_axis(sample: str, kind: Kind) -> None:
    net, params = tiny_net(builtin(sample), kind, 1, PAIRS.get(sample))
    model = onnx.load_from_string(to_onnx(net, params))
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert model.ir_version <= 10
    tensors = {tensor.name: tensor.shape for tensor in builtin(sample).tensors}
    for value in model.graph.input:
        batch, *row = value.type.tensor_type.shape.dim
        assert batch.dim_param == "n"
        assert tuple(axis.dim_value for axis in row) == tensors.pop(value.name)
    assert not tensors
    assert [output.name for output in model.graph.output] == ["score"]


def din(tmp_path: Path) -> tuple[Package, Net, Params]:
    net, params = tiny_net(builtin("alimama"), "din", 3, PAIRS["alimama"])
    return written(tmp_path, "alimama", net, params), net, params


HISTORY = ("hist_cate", "hist_brand", "hist_btag")


def test_empty_history_adds_nothing(tmp_path: Path) -> None:
    """Softmax over a history of padding alone gives even weights; the score must not see what they would bring."""
    package, net, params = din(tmp_path)
    batch = random_batch(package.spec, 20, seed=4)
    for name in HISTORY:
        batch[name][:10] = 0
        batch[name][10:, 0] = 1
    scores = run(OrtEngine(package).open_session(), batch)
    moved = {key: array + (1.0 if key.startswith("attention.") else 0.0) for key, array in params.items()}
    for name in HISTORY:
        moved[f"{name}.table"] = params[f"{name}.table"].copy()
        moved[f"{name}.table"][0] += 5.0
    moved = {key: array.astype(np.float32) for key, array in moved.items()}
    other = run(OrtEngine(written(tmp_path / "moved", "alimama", net, moved)).open_session(), batch)
    np.testing.assert_allclose(other[:10], scores[:10], atol=1e-6)
    assert (np.abs(other[10:] - scores[10:]) > 1e-6).any()


def test_order_of_the_history_does_not_count_and_padding_weighs_nothing(tmp_path: Path) -> None:
    package, _, _ = din(tmp_path)
    batch = random_batch(package.spec, 10, seed=5)
    for name in HISTORY:
        batch[name][:, :6] = np.maximum(batch[name][:, :6], 1)
        batch[name][:, 6:] = 0
    session = OrtEngine(package).open_session()
    scores = run(session, batch)
    order = [3, 1, 5, 0, 2, 4, *range(6, 50)]
    turned = batch | {name: np.ascontiguousarray(batch[name][:, order]) for name in HISTORY}
    np.testing.assert_allclose(run(session, turned), scores, atol=1e-6)


def test_pairs_share_a_table_only_where_ids_mean_the_same() -> None:
    layout = Layout.of(builtin("alimama"), PAIRS["alimama"])
    assert layout.pairs == (Pair("hist_cate", "cate", 0, True), Pair("hist_brand", "brand", 0, True))
    apart = Layout.of(builtin("alimama"), {"hist_cate": "brand", "hist_brand": "customer"})
    assert apart.pairs == (Pair("hist_cate", "brand", 0, False), Pair("hist_brand", "profile", 11, False))
    assert Layout.of(builtin("ad"), PAIRS["ad"]).pairs == (Pair("hist", "ids", 27, True),)


def test_attention_over_tables_of_their_own_is_exported_too(tmp_path: Path) -> None:
    net, params = tiny_net(builtin("alimama"), "din", 6, {"hist_brand": "customer", "hist_cate": "brand"})
    package = written(tmp_path, "alimama", net, params)
    batch = random_batch(package.spec, 50, seed=7)
    scores = run(OrtEngine(package).open_session(), batch)
    np.testing.assert_allclose(scores, predict(net, params, batch), atol=1e-5)


def test_columns_of_one_tensor_have_ranges_one_after_the_other() -> None:
    [ids] = Layout.of(builtin("ad")).ids
    assert ids.columns == 29 and ids.total == 26 * 1000 + 3 * 5000
    np.testing.assert_array_equal(ids.offset[[0, 1, 26, 27, 28]], [0, 1000, 26000, 31000, 36000])


def test_integers_that_are_no_ids_are_refused() -> None:
    spec = ModelSpec.parse(b'event = "custom"\nfeatures = [{ name = "age", dtype = "int32" }]', "test")
    with pytest.raises(LoadError, match="feature age: an integer without vocabulary"):
        Layout.of(spec)


def test_same_seed_gives_the_same_model_and_another_another() -> None:
    net = Net("lr", Layout.of(builtin("avazu")))
    batch = random_batch(builtin("avazu"), 64)
    labels = (batch["ids"][:, 0] % 2).astype(np.float32)
    first, again, other = (to_onnx(net, fit(net, batch, labels, epochs=2, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_numbers_are_standardised_by_the_training_rows() -> None:
    spec = ModelSpec.parse(b'event = "custom"\nfeatures = [{ name = "x", shape = [2] }]', "test")
    net = Net("lr", Layout.of(spec))
    values = np.array([[0.0, 5.0], [np.e - 1, 5.0], [1 - np.e, 5.0]], np.float32)  # squashed: 0, 1, -1; constant
    params = fit(net, {"x": values}, np.array([0, 1, 0], np.float32), epochs=1, seed=0)
    np.testing.assert_allclose(params["x.mean"], [0.0, np.log(6.0)], atol=1e-6)
    np.testing.assert_allclose(params["x.scale"], [1 / np.sqrt(2 / 3), 1.0], rtol=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "din"])
def test_reference_nets_are_the_same_everywhere(tmp_path: Path, kind: str) -> None:
    one, two = (reference_package(tmp_path / name, kind) for name in "ab")  # type: ignore[arg-type]
    assert one.manifest.files == two.manifest.files
    batch = random_batch(one.spec, 16)
    scores = run(OrtEngine(one, max_batch=16).open_session(), batch)
    assert len(np.unique(scores)) > 8
    model = onnx.load(one.file("model.onnx"))
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    widths = [shapes[f"{layer}.weight"] for layer in ("hidden.0", "hidden.1", "head")]
    # din: 21 columns, the pooled history and its product with the target, 32 wide each, and 13 numbers.
    assert widths == ([(256, 512), (512, 256), (256, 1)] if kind == "mlp" else [(749, 128), (128, 64), (64, 1)])
