"""Small CTR graphs with everything a recipe must step around: raw counts, embeddings, LayerNorm, attention, a head."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engines.base import Features

OPSET = 17


class Sketch:
    """A graph under construction: constants and nodes in order."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def const(self, name: str, value: NDArray[np.generic]) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.const(name, self.rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32))

    def op(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=f"{output}.{kind}", **attributes))
        return output

    def gemm(self, x: str, name: str, rows: int, columns: int) -> str:
        return self.op("Gemm", [x, self.weight(f"{name}.w", rows, columns), self.weight(f"{name}.b", columns)], name)

    def model(
        self, inputs: list[onnx.ValueInfoProto], output: str, shape: list[int | str], opset: int = OPSET
    ) -> onnx.ModelProto:
        value = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
        drawn = helper.make_graph(self.nodes, "ctr", inputs, [value], self.constants)
        return helper.make_model(drawn, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def mlp(seed: int = 0) -> onnx.ModelProto:
    """Raw counts [n, 4] and ids [n, 2] -> log1p, LayerNorm -> Gemm 32 -> MatMul + Add 16 -> Gemm 1 -> sigmoid."""
    s = Sketch(seed)
    s.op("Clip", ["dense", s.const("zero", np.float32(0))], "positive")
    s.op("Log", [s.op("Add", ["positive", s.const("one", np.float32(1))], "plus")], "logged")
    s.op("Gather", [s.weight("table", 50, 8), "ids"], "embedded")
    s.op("Reshape", ["embedded", s.const("flat", np.array([0, 16], np.int64))], "wide")
    s.op("Concat", ["logged", "wide"], "joined", axis=1)
    scale, bias = s.const("ln.scale", np.ones(20, np.float32)), s.const("ln.bias", np.zeros(20, np.float32))
    s.op("LayerNormalization", ["joined", scale, bias], "normed", axis=-1)
    s.op("Relu", [s.gemm("normed", "first", 20, 32)], "hidden1")
    s.op("MatMul", ["hidden1", s.weight("second.w", 32, 16)], "second")
    s.op("Relu", [s.op("Add", ["second", s.weight("second.b", 16)], "shifted")], "hidden2")
    s.op("Sigmoid", [s.gemm("hidden2", "head", 16, 1)], "score")
    dense = helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["n", 4])
    ids = helper.make_tensor_value_info("ids", TensorProto.INT32, ["n", 2])
    return s.model([dense, ids], "score", ["n", 1])


def attention(length: int | str = 6, seed: int = 0) -> onnx.ModelProto:
    """History ids [n, length] and an item [n, 1] -> attention GEMM 8 -> logit GEMM 1 -> softmax -> pooled -> MLP."""
    s = Sketch(seed)
    table = s.weight("table", 50, 8)
    s.op("Gather", [table, "hist"], "keys")
    s.op("Gather", [table, "item"], "query")
    s.op("Sub", ["keys", "query"], "difference")
    s.op("Concat", ["keys", "difference"], "pair", axis=2)
    s.op("MatMul", ["pair", s.weight("att.w", 16, 8)], "att")
    s.op("Relu", [s.op("Add", ["att", s.weight("att.b", 8)], "att.shifted")], "att.hidden")
    s.op("MatMul", ["att.hidden", s.weight("logit.w", 8, 1)], "logit")
    s.op("Softmax", ["logit"], "share", axis=1)
    s.op("Transpose", ["share"], "share.t", perm=[0, 2, 1])
    s.op("MatMul", ["share.t", "keys"], "pooled")
    s.op("Concat", ["pooled", "query"], "both", axis=2)
    s.op("Reshape", ["both", s.const("flat", np.array([0, 16], np.int64))], "flat16")
    s.op("Relu", [s.gemm("flat16", "top", 16, 16)], "top.hidden")
    s.op("Sigmoid", [s.gemm("top.hidden", "head", 16, 1)], "score")
    hist = helper.make_tensor_value_info("hist", TensorProto.INT32, ["n", length])
    item = helper.make_tensor_value_info("item", TensorProto.INT32, ["n", 1])
    return s.model([hist, item], "score", ["n", 1])


def mlp_rows(n: int, seed: int = 1) -> Features:
    """Log-normal counts up to about 1e6 and ids."""
    rng = np.random.default_rng(seed)
    dense = np.exp(rng.normal(4, 3, (n, 4))).astype(np.float32)
    return {"dense": dense, "ids": rng.integers(0, 50, (n, 2)).astype(np.int32)}


def attention_rows(n: int, length: int = 6, seed: int = 1) -> Features:
    rng = np.random.default_rng(seed)
    return {
        "hist": rng.integers(0, 50, (n, length)).astype(np.int32),
        "item": rng.integers(0, 50, (n, 1)).astype(np.int32),
    }


def reference(model: onnx.ModelProto, features: Features) -> NDArray[np.generic]:
    """The model's output by ONNX's own evaluator, which rounds float16 for real (ONNX Runtime's CPU does not)."""
    from onnx.reference import ReferenceEvaluator

    newer = onnx.ModelProto()
    newer.CopyFrom(model)
    # The evaluator knows DequantizeLinear from opset 19 on; no operator here means anything else there.
    newer.opset_import[0].version = 19
    scores: NDArray[np.generic] = ReferenceEvaluator(newer).run(None, dict(features))[0]
    return scores.reshape(len(scores))
