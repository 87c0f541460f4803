"""INT8 by explicit pairs: where they stand, what their ranges are, and what the scores lose."""

import numpy as np
import onnx
import pytest
from onnx import helper

from engines.base import Features
from engines.build import graph, quantize
from engines.build.calibration import Rowset
from engines.errors import LoadError
from tests.engines.build import graphs

METHODS: tuple[quantize.Method, ...] = ("entropy", "percentile")


def linear(width: int = 1) -> onnx.ModelProto:
    """x [n, 4] straight into a hidden GEMM of ones, then a head."""
    s = graphs.Sketch()
    s.op("MatMul", ["x", s.const("w", np.ones((4, 3), np.float32))], "hidden")
    s.op("MatMul", ["hidden", s.weight("head.w", 3, width)], "score")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    return graph.prepared(s.model([x], "score", ["n", width]))


def test_pairs_stand_on_the_operands_of_hidden_gemms_only() -> None:
    result = quantize.quantize(graph.prepared(graphs.attention()), Rowset(graphs.attention_rows(300)), "percentile")
    assert result.gemms == ["att.MatMul", "top.Gemm"]
    assert result.kept == {"logit.MatMul": "head", "head.Gemm": "head"}
    kinds = [node.op_type for node in result.model.graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (4, 4)
    zeros = [t for t in result.model.graph.initializer if t.name.endswith("__zero")]
    assert len(zeros) == 4
    assert all(t.data_type == onnx.TensorProto.INT8 and not graph.array(t).any() for t in zeros)


def test_other_readers_of_a_quantised_activation_see_it_unrounded() -> None:
    s = graphs.Sketch()
    s.op("MatMul", ["x", s.weight("w", 4, 4)], "hidden")
    s.op("Add", ["hidden", "x"], "residual")
    s.op("MatMul", ["residual", s.weight("head.w", 4, 1)], "score")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    rows = Rowset({"x": np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)})
    result = quantize.quantize(graph.prepared(s.model([x], "score", ["n", 1])), rows, "percentile")
    (add,) = [node for node in result.model.graph.node if node.op_type == "Add"]
    assert list(add.input) == ["hidden", "x"]


def test_weights_are_scaled_by_output_channel_and_rounded_by_at_most_half_a_step() -> None:
    model = graph.prepared(graphs.mlp())
    result = quantize.quantize(model, Rowset(graphs.mlp_rows(300)), "percentile")
    scale = graph.array(graph.constants(result.model)["first.Gemm__1__scale"])
    weight = graph.array(graph.constants(model)["first.w"]).astype(np.float32)
    np.testing.assert_allclose(scale, np.abs(weight).max(axis=0) / 127, rtol=1e-6)


def test_a_transposed_weight_is_scaled_along_its_rows() -> None:
    s = graphs.Sketch()
    s.op("Gemm", ["x", s.weight("w", 5, 3)], "hidden", transB=1)
    s.op("MatMul", ["hidden", s.weight("head.w", 5, 1)], "score")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    model = graph.prepared(s.model([x], "score", ["n", 1]))
    rows = Rowset({"x": np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)})
    result = quantize.quantize(model, rows, "percentile")
    (pair,) = [node for node in result.model.graph.node if node.name == "hidden.Gemm__1__q"]
    assert [attribute.i for attribute in pair.attribute] == [0]
    assert graph.array(graph.constants(result.model)["hidden.Gemm__1__scale"]).shape == (5,)
    np.testing.assert_allclose(
        graphs.reference(result.model, rows.features), graphs.reference(model, rows.features), atol=0.05
    )


def test_a_channel_of_zeros_stays_zero() -> None:
    model = linear()
    tensor = next(t for t in model.graph.initializer if t.name == "w")
    weight = graph.array(tensor).copy()
    weight[:, 1] = 0
    tensor.CopyFrom(graph.numpy_helper.from_array(weight, "w"))
    rows = Rowset({"x": np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)})
    scores = graphs.reference(quantize.quantize(model, rows, "percentile").model, rows.features)
    assert np.isfinite(scores).all()


def test_percentile_ignores_a_lone_outlier_that_a_maximum_would_follow() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (50_000, 4)).astype(np.float32)
    x[7, 0] = 1000.0
    threshold = quantize.calibrate(linear(), {"x"}, Rowset({"x": x}), "percentile")["x"]
    # One value in 200,000 is 0.0005 %, less than the 0.001 % that are cut; a bin is 1000 / 2048 wide.
    assert threshold == pytest.approx(1.0, abs=1000 / quantize.BINS)


def test_entropy_keeps_the_range_of_uniform_values() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (5_000, 4)).astype(np.float32)
    threshold = quantize.calibrate(linear(), {"x"}, Rowset({"x": x}), "entropy")["x"]
    assert threshold == pytest.approx(1.0, abs=0.05)


def test_entropy_clips_a_long_tail() -> None:
    x = np.random.default_rng(0).standard_t(2, (20_000, 4)).astype(np.float32)
    threshold = quantize.calibrate(linear(), {"x"}, Rowset({"x": x}), "entropy")["x"]
    assert threshold < 0.5 * np.abs(x).max()


@pytest.mark.parametrize("method", METHODS)
def test_the_calibrator_gets_no_more_rows_than_a_stride_and_the_peaks_first(
    method: quantize.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Features] = []

    class Spy(quantize._Once):
        def __init__(self, features: Features) -> None:
            seen.append(features)
            super().__init__(features)

    monkeypatch.setattr(quantize, "_Once", Spy)
    x = np.random.default_rng(0).normal(size=(2 * quantize.STRIDE + 5, 4)).astype(np.float32)
    x[500, 2] = -90.0
    quantize.calibrate(linear(), {"x"}, Rowset({"x": x}), method)
    assert [len(features["x"]) for features in seen] == [quantize.STRIDE, quantize.STRIDE, 5]
    assert seen[0]["x"][0, 2] == -90.0
    assert np.array_equal(np.sort(np.concatenate([f["x"] for f in seen]), axis=0), np.sort(x, axis=0))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_scores_stay_close_and_distinct(kind: str, method: quantize.Method) -> None:
    model = graph.prepared(graphs.mlp() if kind == "mlp" else graphs.attention())
    draw = graphs.mlp_rows if kind == "mlp" else graphs.attention_rows
    result = quantize.quantize(model, Rowset(draw(1000, seed=5)), method)
    rows = draw(1000, seed=6)
    exact, rounded = graphs.reference(model, rows), graphs.reference(result.model, rows)
    assert 0 < np.abs(rounded - exact).max() < 0.06
    assert len(np.unique(rounded)) > 0.95 * len(np.unique(exact))


def test_a_model_of_heads_only_is_refused() -> None:
    s = graphs.Sketch()
    s.op("MatMul", ["x", s.weight("w", 4, 1)], "score")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    with pytest.raises(LoadError, match="no hidden GEMM to quantise"):
        quantize.quantize(graph.prepared(s.model([x], "score", ["n", 1])), Rowset({"x": np.ones((4, 4), np.float32)}))


def test_a_constant_zero_activation_cannot_be_quantised() -> None:
    with pytest.raises(LoadError, match=r"nothing can be quantised .*x has the range 0"):
        quantize.quantize(linear(), Rowset({"x": np.zeros((8, 4), np.float32)}))


@pytest.mark.parametrize("damage", ["bypass", "extra"])
def test_a_missing_or_an_extra_pair_is_noticed(damage: str) -> None:
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    model = quantize.quantize(linear(), Rowset({"x": x}), "percentile").model
    quantize.check_pairs(model, ["hidden.MatMul"])
    if damage == "bypass":
        next(node for node in model.graph.node if node.name == "hidden.MatMul").input[0] = "x"
    else:
        parameters = ["hidden.MatMul__0__scale", "hidden.MatMul__0__zero"]
        model.graph.node.append(helper.make_node("QuantizeLinear", ["score", *parameters], ["q"], name="q"))
    with pytest.raises(LoadError, match="this is a bug"):
        quantize.check_pairs(model, ["hidden.MatMul"])
