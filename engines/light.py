"""Logistic regression in numpy over a model's tensors: always loads, always answers, no runtime underneath.

`light.npz` holds, for tensors named T:

    bias              float32 []         the intercept; standardisation of the numbers is folded into it
    T.weight          float32 [*row]     numbers: weight of squash(x), where squash(x) = sign(x) * log(1 + |x|)
    T.low, T.high     float32 [*row]     numbers: squash(x) is held between these
    T.table           float32 [size]     ids: one weight an id, the columns' ranges one after the other
    T.offset          int64   [*row]     ids: where each column's range starts in the table
    T.pool            bool    []         ids: True for a sequence, which gives the mean weight of its ids other than 0

score = 1 / (1 + exp(-(bias + the sum over all tensors))).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from engines.base import Features, Scores
from engines.errors import LoadError, RunError
from engines.inputs import Inputs
from engines.package import Package
from engines.session import CpuSession
from schemas.errors import brief
from schemas.spec import TensorSpec

Floats = NDArray[np.float32]
# exp(-logit) stays finite, and a probability nearer to 0 has no use.
_LOWEST_LOGIT = np.float32(-30.0)
_ONE = np.float32(1.0)


@dataclass(frozen=True, slots=True)
class _Numbers:
    name: str
    low: Floats
    high: Floats
    """[max_batch, columns], the same row again and again: one long loop is several times faster than many of 35."""
    weight: Floats


@dataclass(frozen=True, slots=True)
class _Ids:
    name: str
    table: Floats
    offset: NDArray[np.int64]
    pool: bool


class LightEngine:
    """`light.npz` of a package. The weights are shared; each session has its own scratch memory."""

    inline = True
    device_bytes = 0

    def __init__(self, package: Package, *, max_batch: int = 1024) -> None:
        """Raises `LoadError` when the file is missing or its arrays do not fit the spec."""
        path = package.file("light.npz")
        self.name = "light"
        self.version = package.version
        self.max_batch = max_batch
        self._inputs = Inputs(package.spec, max_batch)
        arrays = _read(path)
        self._bias = _take(path, arrays, "bias", "float32", ())
        self._numbers: list[_Numbers] = []
        self._ids: list[_Ids] = []
        for tensor in package.spec.tensors:
            if tensor.dtype == "float32":
                self._numbers.append(_numbers(path, arrays, tensor, max_batch))
            else:
                self._ids.append(_ids(path, arrays, tensor))

    def open_session(self) -> CpuSession:
        return CpuSession(self._inputs, _Scratch(self._bias, self._numbers, self._ids, self.max_batch).score)

    def close(self) -> None:
        """Nothing but memory is held."""


class _Scratch:
    """One session's memory, sized for the largest batch, so that a batch allocates little beyond its scores."""

    def __init__(self, bias: Floats, numbers: list[_Numbers], ids: list[_Ids], max_batch: int) -> None:
        self._bias = bias
        self._numbers = [(part, np.empty((max_batch, part.weight.size), np.float32)) for part in numbers]
        self._ids = [
            (part, np.empty((max_batch, part.offset.size), np.int64), np.ones(part.offset.size, np.float32))
            for part in ids
        ]

    def score(self, features: Features, n: int) -> Scores:
        logit = np.full(n, self._bias, np.float32)
        for numbers, squashed in self._numbers:
            logit += _number_logit(features[numbers.name], numbers, squashed[:n])
        for ids, index, ones in self._ids:
            logit += _id_logit(features[ids.name], ids, index[:n], ones)
        np.maximum(logit, _LOWEST_LOGIT, out=logit)
        np.negative(logit, out=logit)
        np.exp(logit, out=logit)
        np.add(logit, _ONE, out=logit)
        return np.reciprocal(logit, out=logit)


def _number_logit(tensor: NDArray[np.generic], part: _Numbers, squashed: Floats) -> Floats:
    flat = tensor.reshape(squashed.shape)
    n = len(flat)
    np.abs(flat, out=squashed)
    np.add(squashed, _ONE, out=squashed)
    np.log(squashed, out=squashed)
    np.copysign(squashed, flat, out=squashed)
    np.maximum(squashed, part.low[:n], out=squashed)
    np.minimum(squashed, part.high[:n], out=squashed)
    result: Floats = squashed @ part.weight
    return result


def _id_logit(tensor: NDArray[np.generic], part: _Ids, index: NDArray[np.int64], ones: Floats) -> Floats:
    flat = tensor.reshape(index.shape)
    np.add(flat, part.offset, out=index)
    try:
        total: Floats = part.table.take(index) @ ones
    except IndexError as error:
        raise RunError(f"{part.name}: {error}; ids are checked when an event is decoded, by the spec") from error
    if part.pool:
        # Id 0 pads a sequence and weighs nothing, so only the divisor has to leave it out.
        total /= np.maximum(np.count_nonzero(flat, axis=1), 1).astype(np.float32)
    return total


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("one array, not an archive")
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # headers of arrays are Python literals: a damaged one can raise anything
        raise LoadError(f"{path}: not a light model: {brief(error)}; train the model again") from error


def _take(path: Path, arrays: dict[str, NDArray[Any]], key: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array that must be there with this dtype and shape (-1 for any length), and finite."""
    array = arrays.get(key)
    if array is None:
        raise LoadError(f"{path}: {key} is missing; train the model again for this spec")
    fits = array.ndim == len(shape) and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
    if array.dtype != dtype or not fits:
        raise LoadError(
            f"{path}: {key} is {array.dtype} {list(array.shape)}, the spec asks for {dtype} {list(shape)}; "
            "train the model again for this spec"
        )
    if not np.isfinite(array).all():
        raise LoadError(f"{path}: {key} is not finite everywhere; train the model again with a lower rate")
    return array


def _numbers(path: Path, arrays: dict[str, NDArray[Any]], tensor: TensorSpec, max_batch: int) -> _Numbers:
    low, high, weight = (
        _take(path, arrays, f"{tensor.name}.{part}", "float32", tuple(tensor.shape)).ravel()
        for part in ("low", "high", "weight")
    )
    return _Numbers(tensor.name, np.tile(low, (max_batch, 1)), np.tile(high, (max_batch, 1)), weight)


def _ids(path: Path, arrays: dict[str, NDArray[Any]], tensor: TensorSpec) -> _Ids:
    table = _take(path, arrays, f"{tensor.name}.table", "float32", (-1,))
    offset = _take(path, arrays, f"{tensor.name}.offset", "int64", tuple(tensor.shape)).astype(np.int64).ravel()
    pool = bool(_take(path, arrays, f"{tensor.name}.pool", "bool", ()))
    if table.size == 0 or (offset < 0).any() or (offset >= table.size).any():
        raise LoadError(f"{path}: {tensor.name}.offset leaves the table of {table.size}; train the model again")
    if pool and (offset.any() or table[0] != 0):
        raise LoadError(f"{path}: {tensor.name}: a sequence needs offsets 0 and weight 0 for id 0; train it again")
    return _Ids(tensor.name, table, offset, pool)
