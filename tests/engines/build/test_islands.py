"""FP16 islands, judged by ONNX's reference evaluator, which rounds for real."""

import numpy as np
import onnx
import pytest

from engines.build import graph, islands
from engines.errors import LoadError
from tests.engines.build import graphs


def lowered(model: onnx.ModelProto, rows: graphs.Features) -> islands.Lowered:
    model = graph.prepared(model)
    return islands.lower(model, graph.peaks(model, [rows], islands.candidates(model)))


def dtypes(model: onnx.ModelProto) -> dict[str, int]:
    typed = onnx.shape_inference.infer_shapes(model)
    return {value.name: value.type.tensor_type.elem_type for value in (*typed.graph.value_info, *typed.graph.output)}


def test_hidden_layers_are_float16_and_nothing_else() -> None:
    result = lowered(graphs.mlp(), graphs.mlp_rows(64))
    assert result.gemms == ["first.Gemm", "second.MatMul"]
    assert result.kept == {"head.Gemm": "head"}
    assert set(result.nodes) == {
        "first.Gemm", "hidden1.Relu", "second.MatMul", "shifted.Add", "hidden2.Relu",
    }  # fmt: skip
    half = {name for name, dtype in dtypes(result.model).items() if dtype == onnx.TensorProto.FLOAT16}
    assert half == {f"{name}__fp16" for name in ("normed", "first", "hidden1", "second", "shifted", "hidden2")}
    weights = {t.name: t.data_type for t in result.model.graph.initializer}
    assert weights["first.w__fp16"] == onnx.TensorProto.FLOAT16
    assert "first.w" not in weights
    assert weights["head.w"] == weights["table"] == onnx.TensorProto.FLOAT


def test_attention_islands_stop_before_the_softmax() -> None:
    result = lowered(graphs.attention(), graphs.attention_rows(32))
    assert result.gemms == ["att.MatMul", "top.Gemm"]
    types = dtypes(result.model)
    assert types["logit"] == types["share"] == types["pooled"] == onnx.TensorProto.FLOAT
    assert types["att.hidden__fp16"] == onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("model", "rows"),
    [(graphs.mlp(), graphs.mlp_rows(2000)), (graphs.attention(), graphs.attention_rows(2000))],
    ids=["mlp", "attention"],
)
def test_scores_stay_close_finite_and_distinct(model: onnx.ModelProto, rows: graphs.Features) -> None:
    exact, rounded = graphs.reference(model, rows), graphs.reference(lowered(model, rows).model, rows)
    assert rounded.dtype == np.float32
    error = np.abs(rounded - exact)
    assert 0 < error.max() < 4e-3
    assert len(np.unique(rounded)) > 0.98 * len(np.unique(exact))


def test_raw_counts_beyond_float16_never_enter_an_island() -> None:
    rows = graphs.mlp_rows(500)
    assert rows["dense"].max() > islands.FLOAT16_MAX
    assert np.isfinite(graphs.reference(lowered(graphs.mlp(), rows).model, rows)).all()


def test_a_gemm_without_headroom_stays_float32() -> None:
    model, rows = graph.prepared(graphs.mlp()), graphs.mlp_rows(64)
    peaks = graph.peaks(model, [rows], islands.candidates(model))
    peaks["second"] = islands.FLOAT16_MAX / islands.HEADROOM * 1.01
    result = islands.lower(model, peaks)
    assert result.gemms == ["first.Gemm"]
    assert result.kept["second.MatMul"].startswith("second reaches 16539.8")
    assert dtypes(result.model)["second"] == onnx.TensorProto.FLOAT


def test_a_tensor_nobody_measured_is_not_trusted() -> None:
    with pytest.raises(LoadError, match="reaches inf"):
        islands.lower(graph.prepared(graphs.mlp()), {})


def test_a_model_of_heads_only_is_refused_rather_than_built_as_float32() -> None:
    s = graphs.Sketch()
    s.op("Sigmoid", [s.gemm("x", "head", 3, 1)], "score")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    with pytest.raises(LoadError, match=r"nothing can run in float16 \(head.Gemm: head\)"):
        islands.lower(graph.prepared(s.model([x], "score", ["n", 1])), {})


def test_the_model_given_is_not_changed() -> None:
    model = graph.prepared(graphs.mlp())
    before = model.SerializeToString()
    lowered(model, graphs.mlp_rows(8))
    assert model.SerializeToString() == before
