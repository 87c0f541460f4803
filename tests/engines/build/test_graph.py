"""What the recipes see: GEMMs with constant weights, heads, and true ranges."""

import numpy as np
import onnx
import pytest
from onnx import helper

from engines.build import graph
from engines.errors import LoadError
from tests.engines.build import graphs


def test_gemms_are_products_with_a_constant_matrix_only() -> None:
    found = graph.gemms(graph.prepared(graphs.attention()))
    assert [(g.node, g.activation, g.weight, g.channels) for g in found] == [
        ("att.MatMul", "pair", "att.w", 8),
        ("logit.MatMul", "att.hidden", "logit.w", 1),
        ("top.Gemm", "flat16", "top.w", 16),
        ("head.Gemm", "top.hidden", "head.w", 1),
    ]


def test_a_transposed_weight_has_its_channels_on_axis_0() -> None:
    s = graphs.Sketch()
    s.op("Gemm", ["x", s.weight("w", 5, 3)], "y", transB=1)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    (gemm,) = graph.gemms(graph.prepared(s.model([x], "y", ["n", 5])))
    assert (gemm.channel_axis, gemm.channels) == (0, 5)


def test_heads_are_logits_of_the_score_and_of_attention() -> None:
    model = graph.prepared(graphs.attention())
    assert graph.heads(model, graph.gemms(model)) == {"logit.MatMul", "head.Gemm"}


def test_the_last_gemm_is_a_head_however_wide() -> None:
    s = graphs.Sketch()
    s.op("Softmax", [s.gemm(s.op("Relu", [s.gemm("x", "first", 3, 8)], "hidden"), "last", 8, 4)], "y")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    model = graph.prepared(s.model([x], "y", ["n", 4]))
    assert graph.heads(model, graph.gemms(model)) == {"last.Gemm"}


def test_constant_nodes_become_initializers_and_names_unique() -> None:
    s = graphs.Sketch()
    value = graph.numpy_helper.from_array(np.ones((3, 2), np.float32))
    s.nodes.append(helper.make_node("Constant", [], ["w"], value=value))
    s.nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"], name="same"))
    s.nodes.append(helper.make_node("Relu", ["y"], ["z"], name="same"))
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    model = graph.prepared(s.model([x], "z", ["n", 2]))
    assert [node.name for node in model.graph.node] == ["same", "Relu_2"]
    assert [gemm.weight for gemm in graph.gemms(model)] == ["w"]


def test_an_invalid_graph_is_refused() -> None:
    model = graphs.mlp()
    model.graph.node[0].op_type = "Clop"
    with pytest.raises(LoadError, match="not a valid ONNX graph"):
        graph.prepared(model)


def test_peaks_are_the_largest_magnitudes_over_all_batches() -> None:
    model = graph.prepared(graphs.mlp())
    batches = [graphs.mlp_rows(40, seed) for seed in (1, 2)]
    expected = max(float(np.log1p(batch["dense"]).max()) for batch in batches)
    assert graph.peaks(model, batches, ["logged"])["logged"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_tensor_that_is_not_finite_peaks_at_infinity(value: float) -> None:
    s = graphs.Sketch()
    s.op("Log", ["x"], "y")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1])
    model = graph.prepared(s.model([x], "y", ["n", 1]))
    rows = {"x": np.array([[1.0], [value]], np.float32)}
    assert graph.peaks(model, [rows], ["y"]) == {"y": float("inf")}


def test_inputs_name_their_free_axes() -> None:
    assert graph.inputs(graphs.attention("length")) == {"hist": (np.int32, (None, None)), "item": (np.int32, (None, 1))}
