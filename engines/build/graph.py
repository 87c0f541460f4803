"""What the precision recipes see of an ONNX graph: its weight GEMMs, its heads, and the range of its activations."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from engines.base import Features
from engines.errors import LoadError


@dataclass(frozen=True, slots=True)
class Gemm:
    """A Gemm or MatMul of an activation with a constant float32 matrix."""

    node: str
    activation: str
    weight: str
    output: str
    channel_axis: int
    """Axis of the weight that runs over output channels."""
    channels: int


def prepared(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every node has a unique name and every Constant is an initializer.

    The inspector reports layers by node name, and recipes look at constants in one place. Raises `LoadError` when the
    graph is not valid ONNX.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes, taken = [], set()
    for index, node in enumerate(copy.graph.node):
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensor = copy.graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            continue
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{index}"
        taken.add(node.name)
        nodes.append(node)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return finished(copy)


def finished(model: onnx.ModelProto) -> onnx.ModelProto:
    """Types inferred anew and the graph checked. Raises `LoadError` when it is not valid ONNX."""
    del model.graph.value_info[:]
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise LoadError(f"{model.graph.name}: not a valid ONNX graph: {error}; export the model again") from error
    return inferred


def drop_unused(model: onnx.ModelProto) -> None:
    """Remove the initializers that nothing reads."""
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    left = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(left)


def constants(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def gemms(model: onnx.ModelProto) -> list[Gemm]:
    """The weight GEMMs of a prepared model in graph order. Products of two activations (attention) are none."""
    return list(_gemms(model))


def heads(model: onnx.ModelProto, found: Iterable[Gemm]) -> set[str]:
    """Nodes among `found` whose output is a logit: a single column, or no other GEMM behind it.

    Their rounding would go straight into the score or into attention weights, as ties and bias (a float16 head leaves
    15 % distinct scores), and they are too small to gain anything.
    """
    found = list(found)
    names = {gemm.node for gemm in found}
    before_gemm: set[str] = set()
    """Tensors from which a GEMM can be reached."""
    last = set()
    for node in reversed(model.graph.node):
        reaches = any(output in before_gemm for output in node.output)
        if node.name in names and not reaches:
            last.add(node.name)
        if node.name in names or reaches:
            before_gemm.update(node.input)
    return last | {gemm.node for gemm in found if gemm.channels == 1}


def peaks(model: onnx.ModelProto, batches: Iterable[Features], tensors: Iterable[str]) -> dict[str, float]:
    """Largest magnitude of each of the model's `tensors` over the batches, in float32 on the CPU.

    NaN or infinity in a tensor is reported as infinity.
    """
    result: dict[str, float] = {}
    for name, value in _values(model, batches, tensors):
        peak = float(np.max(np.abs(value), initial=0.0))
        result[name] = max(result.get(name, 0.0), peak if np.isfinite(peak) else float("inf"))
    return result


def peak_rows(model: onnx.ModelProto, batches: Iterable[Features], tensors: Iterable[str]) -> dict[str, int]:
    """Row, counted over all batches, at which each tensor has its largest finite magnitude."""
    result: dict[str, tuple[float, int]] = {}
    start: dict[str, int] = {}
    for name, value in _values(model, batches, tensors):
        magnitude = np.abs(np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)).reshape(len(value), -1).max(axis=1)
        row = int(magnitude.argmax())
        result[name] = max(result.get(name, (-1.0, 0)), (float(magnitude[row]), start.get(name, 0) + row))
        start[name] = start.get(name, 0) + len(value)
    return {name: row for name, (_, row) in result.items()}


def inputs(model: onnx.ModelProto) -> Mapping[str, tuple[type[np.generic], tuple[int | None, ...]]]:
    """Name -> dtype and shape of each input, None for a free axis."""
    constant = constants(model)
    return {
        value.name: (
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).type,
            tuple(d.dim_value if d.HasField("dim_value") else None for d in value.type.tensor_type.shape.dim),
        )
        for value in model.graph.input
        if value.name not in constant
    }


def array(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    """The values of an initializer."""
    values: NDArray[np.generic] = numpy_helper.to_array(tensor)
    return values


def _values(
    model: onnx.ModelProto, batches: Iterable[Features], tensors: Iterable[str]
) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """(tensor, its value) of every batch, one batch in memory at a time."""
    import onnxruntime

    wanted = sorted(set(tensors))
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in wanted)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    for features in batches:
        yield from zip(wanted, session.run(wanted, dict(features)), strict=True)


def _gemms(model: onnx.ModelProto) -> Iterator[Gemm]:
    constant = constants(model)
    for node in model.graph.node:
        if node.op_type not in ("Gemm", "MatMul") or node.input[0] in constant or node.input[1] not in constant:
            continue
        weight = constant[node.input[1]]
        if len(weight.dims) != 2 or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        flags = {attribute.name: attribute.i for attribute in node.attribute}
        axis = 0 if flags.get("transB") else 1
        yield Gemm(node.name, node.input[0], node.input[1], node.output[0], axis, weight.dims[axis])
