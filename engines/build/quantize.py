"""INT8 by explicit Q/DQ pairs around the hidden GEMMs, with ranges from onnxruntime's calibrators.

Symmetric throughout (TensorRT wants a zero point of 0): activations per tensor, weights per output channel. Heads,
GEMM outputs and biases are not quantised: a quantised head leaves a few hundred distinct scores. Every GEMM gets pairs
of its own, so that no other reader of an activation sees it rounded (onnxruntime's graph writer rewires all readers).
"""

import contextlib
import io
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engines.base import Features
from engines.build import graph
from engines.build.calibration import Rowset
from engines.errors import LoadError

Method = Literal["entropy", "percentile"]
STEPS = 127
"""Largest INT8 magnitude used: symmetric, so -128 is not."""
STRIDE = 256
"""Calibration rows whose activations are in memory at a time."""
BINS = 2048
"""Histogram bins of a tensor; with the runtime's default of 128, entropy calibration degenerates to the maximum."""
PERCENTILE = 99.999


@dataclass(frozen=True, slots=True)
class Quantized:
    model: onnx.ModelProto
    gemms: list[str]
    """GEMM nodes with INT8 operands."""
    kept: dict[str, str]
    """GEMM nodes left in float32 and why."""
    thresholds: dict[str, float]
    """Activation tensor -> largest magnitude that is represented."""


def quantize(model: onnx.ModelProto, rows: Rowset, method: Method = "percentile") -> Quantized:
    """The prepared model with Q/DQ pairs on its hidden GEMMs, calibrated on `rows`.

    Raises `LoadError` when there is nothing to quantise or the graph does not hold exactly two pairs a GEMM.
    """
    found = graph.gemms(model)
    heads = graph.heads(model, found)
    chosen = [gemm for gemm in found if gemm.node not in heads]
    if not chosen:
        raise LoadError(f"{model.graph.name}: no hidden GEMM to quantise; build it as fp32 or tf32")
    thresholds = calibrate(model, {gemm.activation for gemm in chosen}, rows, method)
    kept = dict.fromkeys(sorted(heads), "head")
    flat = {gemm.node: gemm for gemm in chosen if not 0.0 < thresholds[gemm.activation] < float("inf")}
    for gemm in flat.values():
        kept[gemm.node] = f"{gemm.activation} has the range {thresholds[gemm.activation]:g} in calibration"
    chosen = [gemm for gemm in chosen if gemm.node not in flat]
    if not chosen:
        raise LoadError(f"{model.graph.name}: nothing can be quantised ({kept}); calibrate on rows that vary")
    quantized = _insert(model, {gemm.node: gemm for gemm in chosen}, thresholds)
    names = [gemm.node for gemm in chosen]
    check_pairs(quantized, names)
    return Quantized(quantized, names, kept, {gemm.activation: thresholds[gemm.activation] for gemm in chosen})


def calibrate(model: onnx.ModelProto, tensors: set[str], rows: Rowset, method: Method) -> dict[str, float]:
    """Activation tensor -> threshold (largest magnitude kept), by the runtime's histogram calibrator.

    The calibrator keeps all activations of one collection in memory, so it is fed `STRIDE` rows a collection. It also
    widens a histogram by adding bins of the first collection's width, so the rows with the peaks go first.
    """
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    options: dict[str, Any] = {"num_bins": BINS, "symmetric": True}
    if method == "percentile":
        options["percentile"] = PERCENTILE
    else:
        options["num_quantized_bins"] = 2 * STEPS + 2
    with tempfile.TemporaryDirectory(prefix="scorelane.") as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "model.onnx"
        onnx.save_model(_probe(model, tensors), path)
        calibrator = create_calibrator(
            path,
            ["Size"],
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod.Entropy if method == "entropy" else CalibrationMethod.Percentile,
            extra_options=options,
        )
        for chunk in _peaks_first(model, tensors, rows).batches(STRIDE):
            calibrator.collect_data(_Once(chunk))
        ranges = calibrator.compute_data()
    return {name: _threshold(ranges[name].range_value) for name in tensors}


def check_pairs(model: onnx.ModelProto, gemms: Iterable[str]) -> None:
    """Raise `LoadError` unless exactly these nodes read two Q/DQ pairs each, and nothing else is quantised."""
    producer = {output: node for node in model.graph.node for output in node.output}
    names = set(gemms)
    quantizes = sum(node.op_type == "QuantizeLinear" for node in model.graph.node)
    dequantizes = sum(node.op_type == "DequantizeLinear" for node in model.graph.node)
    for node in model.graph.node:
        operands = [producer.get(name) for name in node.input]
        pairs = sum(operand is not None and operand.op_type == "DequantizeLinear" for operand in operands)
        if pairs != (2 if node.name in names else 0):
            raise LoadError(f"{model.graph.name}: {node.name} reads {pairs} dequantised operands; this is a bug")
    if quantizes != 2 * len(names) or dequantizes != 2 * len(names):
        raise LoadError(
            f"{model.graph.name}: {quantizes} quantizers and {dequantizes} dequantizers for {len(names)} GEMMs, not two"
            " of each a GEMM; this is a bug"
        )


class _Once:
    """A data reader of a single batch."""

    def __init__(self, features: Features) -> None:
        self._features: Features | None = features

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        features, self._features = self._features, None
        return None if features is None else dict(features)


def _probe(model: onnx.ModelProto, tensors: set[str]) -> onnx.ModelProto:
    """The model with a Size node on each tensor of interest.

    The calibrator chooses tensors by operator type, and would otherwise keep every input and output of every GEMM.
    """
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for name in sorted(tensors):
        probe.graph.node.append(helper.make_node("Size", [name], [f"{name}__size"], name=f"{name}__size"))
    return probe


def _peaks_first(model: onnx.ModelProto, tensors: set[str], rows: Rowset) -> Rowset:
    """The same rows, those at which some tensor has its largest magnitude before the others."""
    first = np.array(sorted(set(graph.peak_rows(model, rows.batches(STRIDE), tensors).values())), dtype=np.int64)
    return rows.take(np.concatenate([first, np.setdiff1d(np.arange(len(rows)), first)]))


def _threshold(values: tuple[Any, Any]) -> float:
    low, high = (float(np.asarray(value).reshape(-1)[0]) for value in values)
    return max(abs(low), abs(high))


def _insert(model: onnx.ModelProto, gemms: dict[str, graph.Gemm], thresholds: dict[str, float]) -> onnx.ModelProto:
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    constant = graph.constants(model)
    nodes: list[onnx.NodeProto] = []
    for node in quantized.graph.node:
        if gemm := gemms.get(node.name):
            weight = graph.array(constant[gemm.weight]).astype(np.float32)
            scale = np.max(np.abs(weight), axis=1 - gemm.channel_axis) / STEPS
            # A channel of zeros has no range; any scale represents it.
            channel_scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
            activation_scale = np.array(thresholds[gemm.activation] / STEPS, dtype=np.float32)
            axes: tuple[tuple[NDArray[Any], dict[str, Any]], ...] = (
                (activation_scale, {}),
                (channel_scale, {"axis": gemm.channel_axis}),
            )
            for index, (scales, axis) in enumerate(axes):
                added, node.input[index] = _pair(quantized, node.input[index], f"{node.name}__{index}", scales, axis)
                nodes.extend(added)
        nodes.append(node)
    ordered = [_copied(node) for node in nodes]
    del quantized.graph.node[:]
    quantized.graph.node.extend(ordered)
    return graph.finished(quantized)


def _pair(
    model: onnx.ModelProto, tensor: str, name: str, scale: NDArray[np.float32], axis: dict[str, Any]
) -> tuple[list[onnx.NodeProto], str]:
    """QuantizeLinear and DequantizeLinear on a tensor, and the name of what comes out."""
    zero = np.zeros(scale.shape, dtype=np.int8)
    for part, value in (("scale", scale), ("zero", zero)):
        model.graph.initializer.append(numpy_helper.from_array(value, f"{name}__{part}"))
    parameters = [f"{name}__scale", f"{name}__zero"]
    q = helper.make_node("QuantizeLinear", [tensor, *parameters], [f"{name}__q"], name=f"{name}__q", **axis)
    dq = helper.make_node("DequantizeLinear", [f"{name}__q", *parameters], [f"{name}__dq"], name=f"{name}__dq", **axis)
    return [q, dq], f"{name}__dq"


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
