"""FP16 islands: the hidden GEMMs of the MLPs in float16, everything else in float32.

Measured on a synthetic CTR model: a whole graph in float16 turns raw counts above 65504 into infinities and leaves 15 %
distinct scores; islands around the hidden layers keep the AUC, the 99th percentile of the relative error at 0.2 % and
the number of distinct scores. So embeddings, input normalisation, LayerNorm, softmax, logit heads and the sigmoid stay
float32, and the casts stand in the graph, which is what a strongly typed TensorRT network obeys.

TensorRT 10.6 may give such a GEMM float16 accumulators: three times the error on an MLP of 256-512-256-1 (H200). To
cast both operands back to float32, which is said to ask for float32 accumulators, made it run in float32 instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engines.build import graph
from engines.errors import LoadError

FLOAT16_MAX = 65504.0
HEADROOM = 4.0
"""Factor between the largest activation seen in calibration and the largest one float16 holds."""

FOLLOWERS = frozenset({"Add", "Relu", "LeakyRelu", "PRelu", "Clip"})
"""Operators that join an island behind a GEMM: they neither amplify rounding nor exceed their inputs' range much."""


@dataclass(frozen=True, slots=True)
class Lowered:
    model: onnx.ModelProto
    gemms: list[str]
    """GEMM nodes that now run in float16."""
    nodes: list[str]
    """All nodes of the islands."""
    kept: dict[str, str]
    """GEMM nodes left in float32 and why."""


def candidates(model: onnx.ModelProto) -> set[str]:
    """Activation tensors of a prepared model whose peaks `lower` wants to know."""
    names = _members(model, {gemm.node for gemm in graph.gemms(model)})
    return {
        name
        for node in model.graph.node
        if node.name in names
        for name in (*node.input, *node.output)
        if name and name not in graph.constants(model)
    }


def lower(model: onnx.ModelProto, peaks: Mapping[str, float]) -> Lowered:
    """The prepared model with its hidden GEMMs in float16 islands.

    `peaks` is the largest magnitude of each tensor of `candidates` on calibration rows; a GEMM that comes within a
    factor of `HEADROOM` of float16's range stays float32. Raises `LoadError` when no GEMM is left: such a plan would
    be the FP32 one under another name.
    """
    found = graph.gemms(model)
    heads = graph.heads(model, found)
    constant = graph.constants(model)
    kept = dict.fromkeys(sorted(heads), "head")
    for gemm in found:
        if gemm.node in heads:
            continue
        island = _members(model, {gemm.node})
        if too_large := _beyond(model, island, peaks, constant):
            kept[gemm.node] = too_large
    lowered = [gemm.node for gemm in found if gemm.node not in kept]
    if not lowered:
        reasons = "; ".join(f"{node}: {reason}" for node, reason in kept.items()) or "the graph has no weight GEMM"
        raise LoadError(f"{model.graph.name}: nothing can run in float16 ({reasons}); build it as fp32 or tf32")
    members = _members(model, set(lowered))
    return Lowered(_cast(model, members), lowered, sorted(members), kept)


def _members(model: onnx.ModelProto, seeds: set[str]) -> set[str]:
    """The seeds and the followers all of whose activations come from members."""
    constant = graph.constants(model)
    members, inside = set(seeds), set()
    for node in model.graph.node:
        activations = [name for name in node.input if name and name not in constant]
        follows = node.op_type in FOLLOWERS and bool(activations) and all(name in inside for name in activations)
        if node.name in seeds or follows:
            members.add(node.name)
            inside.update(node.output)
    return members


def _beyond(
    model: onnx.ModelProto, island: set[str], peaks: Mapping[str, float], constant: Mapping[str, TensorProto]
) -> str:
    """Why these nodes do not fit into float16, or nothing. A tensor without a known peak does not fit."""
    limit = FLOAT16_MAX / HEADROOM
    for node in model.graph.node:
        if node.name not in island:
            continue
        for name in (*node.input, *node.output):
            if not name:
                continue
            if name in constant:
                if constant[name].data_type != TensorProto.FLOAT:
                    continue
                peak = float(np.max(np.abs(graph.array(constant[name]).astype(np.float32)), initial=0.0))
            else:
                peak = peaks.get(name, float("inf"))
            if not peak <= limit:
                return f"{name} reaches {peak:g}, more than {limit:g}"
    return ""


def _cast(model: onnx.ModelProto, members: set[str]) -> onnx.ModelProto:
    """Members on float16 copies of their constants, with casts at every border of the islands."""
    lowered = onnx.ModelProto()
    lowered.CopyFrom(model)
    constant = graph.constants(model)
    inside = {output for node in model.graph.node if node.name in members for output in node.output}
    outside = _read_outside(model, members)
    nodes: list[onnx.NodeProto] = []
    halves: dict[str, str] = {}
    for node in model.graph.node:
        node = _copy(node)
        if node.name in members:
            for index, name in enumerate(node.input):
                if not name or (name in constant and constant[name].data_type != TensorProto.FLOAT):
                    continue
                if name not in halves:
                    halves[name] = f"{name}__fp16"
                    if name in constant:
                        half = graph.array(constant[name]).astype(np.float16)
                        lowered.graph.initializer.append(numpy_helper.from_array(half, halves[name]))
                    elif name not in inside:
                        nodes.append(_cast_node(name, halves[name], TensorProto.FLOAT16))
                node.input[index] = halves[name]
            back = []
            for index, name in enumerate(node.output):
                halves[name] = node.output[index] = f"{name}__fp16"
                if name in outside:
                    back.append(_cast_node(halves[name], name, TensorProto.FLOAT))
            nodes.extend([node, *back])
        else:
            nodes.append(node)
    del lowered.graph.node[:]
    lowered.graph.node.extend(nodes)
    graph.drop_unused(lowered)
    return graph.finished(lowered)


def _read_outside(model: onnx.ModelProto, members: set[str]) -> set[str]:
    """Tensors read by a node outside the islands or by the caller."""
    read = {value.name for value in model.graph.output}
    read.update(name for node in model.graph.node if node.name not in members for name in node.input)
    return read


def _cast_node(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"{target}__cast", to=to)


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
