"""What a built engine really computes with, read from TensorRT's inspector, and the check that it is what was asked.

TensorRT 10 describes a tensor by one text, "Format/Datatype"; 11 splits it into "Format" and "DataType". A layer's
"Metadata" names the ONNX nodes in it: `[ONNX Layer: a]` once for each, so that precisions are checked node by node.
Compiled regions number their layers `..._myl<profile>_<index>`; single layers end in ` [profile N]` but for the first.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from engines.errors import LoadError
from engines.plans import Precision

_NODE = re.compile(r"\[ONNX Layer: ([^\]|]+?)\s*(?:\|[^\]]*)?\]")
_PROFILE = re.compile(r"_myl(\d+)_\d+$|\[profile (\d+)\]")
_BORDERS = ("__cast", "__q", "__dq")
"""Ends of the names that the recipes give to the nodes at which a type changes."""
_TYPES = (
    ("int8", ("int8",)),
    ("bf16", ("bf16", "bfloat16")),
    ("fp16", ("fp16", "half", "float16")),
    ("fp8", ("fp8",)),
    ("int32", ("int32",)),
    ("int64", ("int64",)),
    ("bool", ("bool",)),
    ("fp32", ("fp32", "float32", "float")),
)
"""Type -> words for it in either schema, tested in this order."""
LOWER = frozenset({"int8", "bf16", "fp16", "fp8"})


@dataclass(frozen=True, slots=True)
class Layer:
    name: str
    kind: str
    inputs: tuple[str, ...]
    """Types of its inputs, weights included where the layer names theirs; "?" where the inspector does not say."""
    outputs: tuple[str, ...]
    tactic: str
    nodes: frozenset[str]
    """ONNX nodes computed in it."""

    @property
    def types(self) -> set[str]:
        return {*self.inputs, *self.outputs}


def parse(text: str) -> list[Layer]:
    """Layers of the inspector's JSON, of TensorRT 10 or 11.

    Raises `LoadError` when it holds names only, as it does unless the engine was built with detailed verbosity.
    """
    document = json.loads(text)
    found = document.get("Layers", []) if isinstance(document, dict) else document
    if any(not isinstance(layer, dict) for layer in found):
        raise LoadError("the engine inspector gives layer names only; build with ProfilingVerbosity.DETAILED")
    return [_layer(layer) for layer in found]


def by_profile(layers: Iterable[Layer]) -> list[list[Layer]]:
    """Layers of each optimisation profile, by their names."""
    groups: dict[int, list[Layer]] = {0: []}
    for layer in layers:
        mark = _PROFILE.search(layer.name)
        groups.setdefault(int(mark[1] or mark[2]) if mark else 0, []).append(layer)
    return [groups[index] for index in sorted(groups)]


def count(layers: Iterable[Layer]) -> dict[str, int]:
    """Layers by the narrowest type they read or write; besides, under "tf32" those whose kernel is a TF32 one and under
    "fp16 accumulators" those that also sum in float16, as a float16 GEMM may when that is faster.

    Layers without tensors (synchronisation, shapes) do not count.
    """
    counts: Counter[str] = Counter()
    for layer in layers:
        if not layer.types:
            continue
        narrowest = next((name for name, _ in _TYPES if name in layer.types), "?")
        counts[narrowest] += 1
        counts["tf32"] += "tf32" in layer.tactic.lower()
        counts["fp16 accumulators"] += "f16f16_f16f16_f16" in layer.tactic
    return dict(sorted((+counts).items()))


def check(
    layers: Iterable[Layer], precision: Precision, gemms: Iterable[str], kept: Mapping[str, str]
) -> dict[str, str]:
    """GEMM node -> "shown" (a layer of it reads the asked type) or "fused" (inside a kernel that shows other borders).

    `gemms` are the nodes asked for in `precision`, `kept` those that must stay float32. Raises `LoadError` naming the
    layer when one computes in a type that was not asked for, or when not a single GEMM shows the asked one.
    """
    layers = list(layers)
    if precision in ("fp32", "tf32"):
        _only_float32(layers, precision)
        return {}
    verdict = {gemm: _shown(layers, gemm, precision) for gemm in gemms}
    wrong = [gemm for gemm, how in verdict.items() if how == "not"]
    if wrong or "shown" not in verdict.values():
        which = ", ".join(wrong) or "every one of its GEMMs"
        seen = "; ".join(f"{layer.name}: {', '.join(sorted(layer.types))}" for layer in layers)
        raise LoadError(
            f"asked for {precision}, but the engine does not show it for {which}; its layers: {seen[:2000]}"
        )
    for layer in layers:
        # The head's kernel holds the sigmoid too, and perhaps the border behind which it begins.
        nodes = ", ".join(sorted(layer.nodes & kept.keys()))
        apart = not layer.nodes & verdict.keys() and not _at_border(layer)
        if nodes and apart and (lower := layer.types & LOWER):
            raise LoadError(f"{nodes} must stay float32, but layer {layer.name} uses {', '.join(sorted(lower))}")
    return verdict


def _only_float32(layers: Iterable[Layer], precision: Precision) -> None:
    for layer in layers:
        lower = layer.types & LOWER
        if lower or (precision == "fp32" and "tf32" in layer.tactic.lower()):
            used = ", ".join(sorted(lower)) or layer.tactic
            raise LoadError(f"asked for {precision}, but layer {layer.name} uses {used}")


def _shown(layers: Iterable[Layer], gemm: str, precision: Precision) -> str:
    """How the layers that compute this node show the precision; a node that no layer names counts as fused."""
    holding = [layer for layer in layers if gemm in layer.nodes]
    if any(precision in layer.inputs for layer in holding):
        return "shown"
    # A kernel that begins before the island shows what it reads there; any other one shows what the GEMM reads.
    enters = {f"{gemm}__0__q"}
    inner = [layer for layer in holding if not any(n in enters or n.endswith("__fp16__cast") for n in layer.nodes)]
    return "not" if any(layer.inputs and "?" not in layer.inputs for layer in inner) else "fused"


def _at_border(layer: Layer) -> bool:
    return any(node.endswith(_BORDERS) for node in layer.nodes)


def _layer(layer: Mapping[str, Any]) -> Layer:
    weights = layer.get("Weights")
    inputs = [_type(tensor) for tensor in layer.get("Inputs", [])]
    if isinstance(weights, dict) and "Type" in weights:
        inputs.append(_named(str(weights["Type"])))
    return Layer(
        name=str(layer.get("Name", "")),
        kind=str(layer.get("LayerType", "")),
        inputs=tuple(inputs),
        outputs=tuple(_type(tensor) for tensor in layer.get("Outputs", [])),
        tactic=str(layer.get("TacticName", "")),
        nodes=frozenset(_NODE.findall(str(layer.get("Metadata", "")))),
    )


def _type(tensor: object) -> str:
    if not isinstance(tensor, dict):
        return "?"
    return _named(str(tensor.get("DataType") or tensor.get("Format/Datatype") or tensor.get("Format") or ""))


def _named(text: str) -> str:
    words = text.lower()
    if words.startswith("n/a"):
        return "?"
    return next((name for name, spellings in _TYPES if any(spelling in words for spelling in spellings)), "?")
