"""Whether a segment fits the models it stands between."""

from collections.abc import Iterator
from itertools import accumulate

from schemas.spec import ModelSpec
from worker.config_quality import SegmentConfig
from worker.config_rules_quality import Found


def misfits(segment: SegmentConfig, spec: ModelSpec, own: ModelSpec) -> Iterator[Found]:
    """`spec` is that of the topic's model, `own` that of the segment's."""
    if own.tensors != spec.tensors:
        problem = f"its inputs are {_shown(own)}, those of the topic's model {_shown(spec)}"
        yield "model", segment.model, problem, "train it with the topic's spec: both are fed the same"
    column = f"{segment.tensor}[{segment.column}]"
    features = spec.by_tensor.get(segment.tensor, ())
    ends = list(accumulate(feature.size for feature in features))
    feature = next((f for f, end in zip(features, ends, strict=True) if segment.column < end), None)
    if feature is None or feature.dtype == "float32" or len(feature.shape) > 1:
        yield "tensor", column, f"the model has no such integer column; it has {_shown(spec)}", "name one of those"
    elif outside := [value for value in segment.values if not 0 <= value < (feature.cardinality or 1 << 63)]:
        problem = f"never occur in {column} ({feature.name}), whose ids are below {feature.cardinality}"
        yield "values", ", ".join(map(str, outside)), problem, "give ids as they are in the model's input"


def _shown(spec: ModelSpec) -> str:
    return ", ".join(f"{tensor.name} {tensor.dtype}{list(tensor.shape)}" for tensor in spec.tensors)
