"""A small writer of ONNX graphs: nodes are named by what they compute, so that precision passes can choose by name."""

from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET: Final = 17
IR_VERSION: Final = 10
_TYPES: Final = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}


class Graph:
    """Collects nodes in order. Every value has the name of the node that makes it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._domains = {"": OPSET}

    def input(self, name: str, dtype: str, row: tuple[int, ...]) -> str:
        """A model input of shape [n, *row]."""
        self._inputs.append(helper.make_tensor_value_info(name, _TYPES[dtype], ["n", *row]))
        return name

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """An initializer; the same name is written once."""
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def number(self, name: str, value: float) -> str:
        """A float32 scalar."""
        return self.constant(name, np.array(value, np.float32))

    def axes(self, *axes: int) -> str:
        return self.constant("axes" + "".join(f"_{axis}" for axis in axes), np.array(axes, np.int64))

    def add(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """A node whose single output has its name."""
        self._nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def add_ml(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """A node of ai.onnx.ml, version 3."""
        self._domains["ai.onnx.ml"] = 3
        return self.add(op, inputs, name, domain="ai.onnx.ml", **attributes)

    def finish(self, logit: str) -> bytes:
        """Close the graph with score = sigmoid(logit) of shape [n], from a logit [n, 1]; checked and serialised."""
        self.add("Sigmoid", [logit], "probability")
        self.add("Squeeze", ["probability", self.axes(1)], "score")
        output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n"])
        graph = helper.make_graph(self._nodes, self._name, self._inputs, [output], list(self._constants.values()))
        opsets = [helper.make_opsetid(domain, version) for domain, version in self._domains.items()]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="scorelane", ir_version=IR_VERSION)
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())
