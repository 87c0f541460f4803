"""Buckets: the fixed input shapes of a plan, one optimisation profile each."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from engines.base import Features
from engines.build import graph
from engines.build.calibration import Rowset
from engines.errors import LoadError
from engines.plans import Profile
from schemas.spec import ModelSpec

SEQUENCE_AXIS = "length"
TIPPING_BATCHES = (1, 8, 32, 256)
RANKING_BATCHES = (32, 256, 1024)


def usual_batches(spec: ModelSpec) -> tuple[int, ...]:
    """Batch sizes to build when none are given.

    Tips come one by one and their batches are small; 256 takes a backlog, at the worker's default limit. Ad events come
    in bursts, and a wide batch pays for their sequences.
    """
    return TIPPING_BATCHES if spec.event == "tipping" else RANKING_BATCHES


def sequences(spec: ModelSpec) -> dict[str, int]:
    """Tensor -> full length of each input that is one padded sequence a row."""
    return {
        name: features[0].shape[0]
        for name, features in spec.by_tensor.items()
        if len(features) == 1 and features[0].pad and len(features[0].shape) == 1
    }


def profiles(spec: ModelSpec, batches: Sequence[int], lengths: Sequence[int] = ()) -> list[Profile]:
    """A profile for each batch size, with `lengths` also for each shorter sequence length, the full one included.

    Raises `LoadError` for sizes below 1, and for lengths when the model has no padded sequence.
    """
    full = sequences(spec)
    if not batches or min([*batches, *lengths]) < 1:
        raise LoadError(f"buckets {list(batches)}, lengths {list(lengths)}: give sizes of at least 1")
    if not lengths:
        return [Profile(batch=batch, shapes=_shapes(spec, batch, full)) for batch in sorted(set(batches))]
    if not full:
        raise LoadError(f"lengths {list(lengths)}: no tensor of the spec is one padded sequence; leave lengths out")
    longest = max(full.values())
    steps = sorted({min(length, longest) for length in lengths} | {longest})
    return [
        Profile(
            batch=batch,
            sequence=length,
            shapes=_shapes(spec, batch, {name: min(length, whole) for name, whole in full.items()}),
        )
        for batch in sorted(set(batches))
        for length in steps
    ]


def freed(model: onnx.ModelProto, full: Mapping[str, int]) -> onnx.ModelProto:
    """The prepared model with a free axis 1 on these inputs. Raises `LoadError` when a shape in it depends on them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        if value.name in full:
            value.type.tensor_type.shape.dim[1].dim_param = f"{SEQUENCE_AXIS}_{value.name}"
    return graph.finished(copy)


def check_trimming(model: onnx.ModelProto, full: Mapping[str, int], length: int, rows: Rowset) -> None:
    """Raise `LoadError` when the freed model scores rows differently once padding beyond `length` is cut off.

    A model that does not mask its padding would be served wrongly in a shorter bucket, at any precision.
    """
    import onnxruntime

    short = rows.take(np.flatnonzero(_lengths(rows.features, full) <= length))
    if not len(short):
        return
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    cut = {
        name: np.ascontiguousarray(tensor[:, : min(length, full[name])]) if name in full else tensor
        for name, tensor in short.features.items()
    }
    whole = session.run(None, dict(short.features))[0]
    try:
        trimmed = session.run(None, cut)[0]
    except Exception as error:  # the runtime's exceptions have no base class of their own
        raise LoadError(
            f"{model.graph.name}: does not run on sequences of {length}: {error}; export it with a free sequence axis,"
            " or build without lengths"
        ) from error
    difference = float(np.max(np.abs(whole - trimmed)))
    if not difference <= 1e-5:
        raise LoadError(
            f"{model.graph.name}: scores change by up to {difference:.2g} when padding beyond {length} is cut off;"
            " mask the padding in the model, or build without lengths"
        )


def _lengths(features: Features, full: Mapping[str, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[n] longest used length of each row over its sequences: the position behind the last element that is not 0."""
    longest = np.zeros(len(next(iter(features.values()))), dtype=np.int64)
    for name, whole in full.items():
        used = features[name] != 0
        last = whole - np.argmax(used[:, ::-1], axis=1)
        longest = np.maximum(longest, np.where(used.any(axis=1), last, 0))
    return longest


def _shapes(spec: ModelSpec, batch: int, lengths: Mapping[str, int]) -> dict[str, list[int]]:
    return {
        tensor.name: [batch, lengths[tensor.name]] if tensor.name in lengths else [batch, *tensor.shape]
        for tensor in spec.tensors
    }
