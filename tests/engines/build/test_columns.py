"""Products with one column as sums: the same values by ONNX's reference evaluator, and nothing else touched."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from engines.build import columns, graph, recipe
from engines.build.calibration import Rowset
from tests.engines.build import graphs


def operators(model: onnx.ModelProto) -> dict[str, str]:
    return {node.name: node.op_type for node in model.graph.node}


def test_an_attention_head_becomes_a_product_and_a_sum_and_other_products_stay() -> None:
    model = graph.prepared(graphs.attention())
    summed = columns.summed(model)
    before, after = operators(model), operators(summed)
    assert before["logit.MatMul"] == "MatMul" and after["logit.MatMul"] == "ReduceSum"
    assert after.pop("logit.MatMul__product") == "Mul"
    assert after == before | {"logit.MatMul": "ReduceSum"}
    assert "logit.w" not in graph.constants(summed)
    rows = graphs.attention_rows(300)
    np.testing.assert_allclose(graphs.reference(summed, rows), graphs.reference(model, rows), rtol=1e-6)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 5, 7), (2, 3, 5, 7)], ids=len)
@pytest.mark.parametrize("opset", [11, 17])
def test_it_is_the_matrix_product_for_any_number_of_axes_and_opset(shape: tuple[int, ...], opset: int) -> None:
    s = graphs.Sketch()
    s.op("MatMul", ["x", s.weight("w", 7, 1)], "y")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    model = graph.prepared(s.model([x], "y", [*shape[:-1], 1], opset))
    value = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    weight = np.asarray(graph.array(graph.constants(model)["w"]))
    [found] = ReferenceEvaluator(columns.summed(model)).run(None, {"x": value})
    assert found.shape == (*shape[:-1], 1)
    np.testing.assert_allclose(found, value @ weight, rtol=1e-5, atol=1e-6)


def test_a_weight_that_others_read_too_stays_for_them() -> None:
    s = graphs.Sketch()
    w = s.weight("w", 3, 1)
    s.op("Add", [s.op("MatMul", ["x", w], "first"), s.op("Gemm", ["x", w], "second")], "y")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3])
    summed = columns.summed(graph.prepared(s.model([x], "y", ["n", 1])))
    assert operators(summed)["second.Gemm"] == "Gemm" and "w" in graph.constants(summed)
    rows = {"x": np.eye(3, dtype=np.float32)}
    weight = np.asarray(graph.array(graph.constants(summed)["w"]))
    np.testing.assert_allclose(graphs.reference(summed, rows), 2 * weight.reshape(-1), rtol=1e-6)


def test_precisions_choose_their_gemms_before_and_float32_heads_stay_float32() -> None:
    rows = Rowset(graphs.attention_rows(200))
    made = recipe.apply(graph.prepared(graphs.attention()), "fp16", rows)
    summed = columns.summed(made.model)
    assert made.gemms == ["att.MatMul", "top.Gemm"] and "logit.MatMul" in made.kept
    typed = {value.name: value.type.tensor_type.elem_type for value in summed.graph.value_info}
    assert typed["logit.MatMul__product"] == typed["logit"] == onnx.TensorProto.FLOAT
    np.testing.assert_allclose(
        graphs.reference(summed, rows.features), graphs.reference(made.model, rows.features), rtol=1e-5
    )
