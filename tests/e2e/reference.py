"""What the right answer is: an event decoded by hand, one row at a time, and a direct ONNX Runtime run on that row."""

import zlib
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engines.package import Package, write_package
from schemas.rows import Tensors
from schemas.spec import FeatureSpec, ModelSpec


def row(spec: ModelSpec, event: Mapping[str, object]) -> Tensors:
    """Model inputs [1, *row shape] of one event: raw fields as bytes, everything else as a CSV or JSON row has it."""
    tensors: Tensors = {}
    for tensor in spec.tensors:
        columns = [_elements(feature, event.get(feature.field)) for feature in spec.by_tensor[tensor.name]]
        tensors[tensor.name] = np.concatenate(columns).astype(tensor.dtype).reshape(1, *tensor.shape)
    return tensors


def _elements(feature: FeatureSpec, value: object) -> list[float]:
    count = prod(feature.shape)
    if value is None:
        value = 0 if feature.default is None else feature.default
        return [0.0] * count if feature.is_category else [float(str(value))] * count
    if isinstance(value, bytes):
        values: list[object] = np.frombuffer(value, np.dtype(feature.dtype).newbyteorder("<")).tolist()
    else:
        values = list(value) if isinstance(value, list | tuple) else [value]
    if feature.buckets is not None:
        known = [1 + zlib.crc32(f"{feature.namespace}={item}".encode()) % (feature.buckets - 1) for item in values]
        elements = [float(index) for index in known]
    else:
        elements = [float(str(item)) for item in values]
    return elements + [0.0] * (count - len(elements))


def direct_scores(package: Package, events: Iterable[Mapping[str, object]]) -> NDArray[np.float32]:
    """The model's own score of each event, run alone."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    model = onnxruntime.InferenceSession(str(package.file("model.onnx")), options, providers=["CPUExecutionProvider"])
    return np.array([model.run(None, row(package.spec, event))[0].item() for event in events], dtype=np.float32)


def fingerprint_package(directory: Path, spec: ModelSpec) -> Package:
    """A model whose score is a whole number below 2**24, in every order of summation and in every batch size.

    So the score of a row is the same to the bit however it was batched, and rows tell themselves apart by it. Inputs
    must be whole numbers below 16.
    """
    rng = np.random.default_rng(1)
    nodes, initializers, parts = [], [], []
    for tensor in spec.tensors:
        if tensor.dtype == "float32":
            weight = rng.integers(1, 4000, (prod(tensor.shape), 1)).astype(np.float32)
            nodes.append(helper.make_node("MatMul", [tensor.name, f"{tensor.name}.weight"], [f"{tensor.name}.part"]))
        else:
            limit = max(feature.cardinality or 1 for feature in spec.by_tensor[tensor.name])
            weight = rng.integers(0, 500_000, limit).astype(np.float32)
            nodes += [
                helper.make_node("Gather", [f"{tensor.name}.weight", tensor.name], [f"{tensor.name}.rows"]),
                helper.make_node("ReduceSum", [f"{tensor.name}.rows", "axes"], [f"{tensor.name}.part"], keepdims=1),
            ]
        initializers.append(numpy_helper.from_array(weight, f"{tensor.name}.weight"))
        parts.append(f"{tensor.name}.part")
    nodes.append(helper.make_node("Sum", parts, ["score"]))
    initializers.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "axes"))
    inputs = [
        helper.make_tensor_value_info(
            tensor.name, helper.np_dtype_to_tensor_dtype(np.dtype(tensor.dtype)), ["n", *tensor.shape]
        )
        for tensor in spec.tensors
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])
    graph = helper.make_graph(nodes, "fingerprint", inputs, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return write_package(
        directory,
        name="fingerprint",
        version="1",
        kind="fingerprint",
        files={"model.onnx": model.SerializeToString(), "spec.toml": spec.dumps()},
    )


def event_fields(event: msgspec.Struct) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}
