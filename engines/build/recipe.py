"""A precision as a change of the ONNX graph: what TensorRT is given, and what the plan must then show."""

from dataclasses import dataclass
from typing import Any

import onnx

from engines.build import graph, islands, quantize
from engines.build.calibration import Rowset
from engines.errors import LoadError
from engines.plans import Precision

PROBE_ROWS = 256
"""Rows scored at a time while activation ranges are measured."""


@dataclass(frozen=True, slots=True)
class Recipe:
    precision: Precision
    model: onnx.ModelProto
    gemms: list[str]
    """GEMM nodes that the recipe took out of float32; empty for fp32 and tf32."""
    kept: dict[str, str]
    """GEMM nodes left in float32 by fp16 and int8, and why."""
    note: dict[str, Any]
    """What the plan's sidecar says about it."""


def apply(
    model: onnx.ModelProto, precision: Precision, rows: Rowset | None = None, method: quantize.Method = "percentile"
) -> Recipe:
    """The prepared model in this precision. `rows` are calibration rows, needed by fp16 (ranges) and int8.

    Raises `LoadError` when rows are missing or nothing in the graph can take the precision.
    """
    if precision in ("fp32", "tf32"):
        return Recipe(precision, model, [], {}, {"graph": "unchanged", "tf32": precision == "tf32"})
    if rows is None or not len(rows):
        raise LoadError(f"{model.graph.name}: {precision} needs rows to measure activations on; give --rows FILE")
    if precision == "fp16":
        tensors = islands.candidates(model)
        lowered = islands.lower(model, graph.peaks(model, rows.batches(PROBE_ROWS), tensors))
        note = {"islands": lowered.nodes, "gemms": lowered.gemms, "float32": lowered.kept, "rows": len(rows)}
        return Recipe(precision, lowered.model, lowered.gemms, lowered.kept, note)
    quantized = quantize.quantize(model, rows, method)
    note = {
        "method": method,
        "gemms": quantized.gemms,
        "float32": quantized.kept,
        "thresholds": quantized.thresholds,
        "rows": len(rows),
    }
    return Recipe(precision, quantized.model, quantized.gemms, quantized.kept, note)
