"""How a model reads its tensors: which hold numbers, which hold ids in columns, which hold a sequence of ids."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.errors import LoadError
from schemas.spec import FeatureSpec, ModelSpec, TensorSpec


@dataclass(frozen=True, slots=True)
class Numbers:
    """A float32 tensor; every element is a column of its own."""

    name: str
    shape: tuple[int, ...]

    @property
    def columns(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Ids:
    """An integer tensor whose columns are different features, each with its own range of one table."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sizes: tuple[int, ...]
    """Ids of each column: 0 <= id < size."""

    @property
    def columns(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def offset(self) -> NDArray[np.int64]:
        """[columns] where each column's range starts."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    def places(self, tensor: NDArray[Any]) -> NDArray[np.int64]:
        """[n, columns] where the ids of a batch stand in the table."""
        result: NDArray[np.int64] = tensor.reshape(len(tensor), -1) + self.offset
        return result


@dataclass(frozen=True, slots=True)
class Sequence:
    """An integer tensor of one row of ids a event, right-padded with 0."""

    name: str
    dtype: str
    length: int
    size: int
    """0 <= id < size."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A sequence and the column of an `Ids` tensor that its attention asks about."""

    sequence: str
    tensor: str
    column: int
    shared: bool
    """Both count the same things by the same ids, so that one embedding table serves both."""


@dataclass(frozen=True, slots=True)
class Layout:
    numbers: tuple[Numbers, ...]
    ids: tuple[Ids, ...]
    sequences: tuple[Sequence, ...]
    pairs: tuple[Pair, ...] = ()

    def compared(self, embed: int) -> NDArray[np.int64]:
        """[pairs * embed] columns of the sequences' joined embeddings that belong to the pairs, in their order."""
        order = [sequence.name for sequence in self.sequences]
        starts = [order.index(pair.sequence) * embed for pair in self.pairs]
        return np.concatenate([np.arange(start, start + embed) for start in starts]).astype(np.int64)

    @classmethod
    def of(cls, spec: ModelSpec, pairs: Mapping[str, str] | None = None) -> "Layout":
        """Layout of a spec's tensors. `pairs`: sequence tensor -> feature that it is asked about.

        Raises `LoadError` for integers that are not ids, which the nets cannot read.
        """
        numbers: list[Numbers] = []
        ids: list[Ids] = []
        sequences: list[Sequence] = []
        places: dict[str, tuple[str, int]] = {}
        for tensor in spec.tensors:
            features = spec.by_tensor[tensor.name]
            if tensor.dtype == "float32":
                numbers.append(Numbers(tensor.name, tuple(tensor.shape)))
            elif len(features) == 1 and features[0].pad:
                sequences.append(_sequence(tensor, features[0]))
            else:
                sizes: list[int] = []
                for feature in features:
                    places[feature.name] = (tensor.name, len(sizes))
                    sizes += [cardinality(feature)] * feature.size
                ids.append(Ids(tensor.name, tensor.dtype, tuple(tensor.shape), tuple(sizes)))
        by_name = {feature.name: feature for feature in spec.features}
        found = tuple(
            Pair(sequence, *places[target], _same_ids(spec.by_tensor[sequence][0], by_name[target]))
            for sequence, target in (pairs or {}).items()
        )
        return cls(tuple(numbers), tuple(ids), tuple(sequences), found)


def cardinality(feature: FeatureSpec) -> int:
    """Number of ids of a category feature, id 0 included. Raises `LoadError` for a feature that is none."""
    if feature.cardinality is None:
        raise LoadError(
            f"feature {feature.name}: an integer without vocabulary, buckets or ids; "
            "give one of them, or make it float32 to train on it as a number"
        )
    return feature.cardinality


def _same_ids(one: FeatureSpec, other: FeatureSpec) -> bool:
    """True when a value has the same id in both: hashed in one namespace, or counted by the producer alike."""
    if one.buckets is not None:
        return (one.namespace, one.buckets) == (other.namespace, other.buckets)
    return one.ids is not None and one.ids == other.ids


def _sequence(tensor: TensorSpec, feature: FeatureSpec) -> Sequence:
    return Sequence(tensor.name, tensor.dtype, tensor.shape[0], cardinality(feature))
