"""What a batch must look like for a model: the check that every engine makes before it touches its data."""

import numpy as np

from engines.base import Features
from engines.errors import RunError
from schemas.rows import Tensors
from schemas.spec import ModelSpec


class Inputs:
    """Names, dtypes and row shapes of one model's tensors, and its largest batch. Shared by threads."""

    def __init__(self, spec: ModelSpec, max_batch: int) -> None:
        self.tensors = spec.tensors
        self.max_batch = max_batch
        self._spec = spec
        self._expected = {tensor.name: (np.dtype(tensor.dtype), tuple(tensor.shape)) for tensor in spec.tensors}

    def check(self, features: Features) -> int:
        """Rows of the batch. Raises `RunError` naming the tensor, what was found and what the model takes."""
        if features.keys() != self._expected.keys():
            raise RunError(f"tensors {sorted(features)} given; the model takes {sorted(self._expected)}")
        n = -1
        for name, (dtype, row) in self._expected.items():
            tensor = features[name]
            shape = tensor.shape
            if shape[1:] != row or not shape or tensor.dtype != dtype:
                raise RunError(f"{name}: {tensor.dtype} {list(shape)} given; the model takes {dtype} {row} a row")
            if not tensor.flags.c_contiguous:
                raise RunError(f"{name}: not C-contiguous; pass a contiguous array")
            if shape[0] != n:
                if n >= 0:
                    raise RunError(f"{name}: {shape[0]} rows, but the tensors before it have {n}")
                n = shape[0]
        if not 1 <= n <= self.max_batch:
            raise RunError(f"{n} rows given; a batch has 1 to {self.max_batch}")
        return n

    def sample(self, n: int) -> Tensors:
        """A valid batch of n rows for warm-up, the same each time: numbers in [0, 1), ids over their whole range, so
        that a model's tables are in the caches and a table that is smaller than the spec says is found at the start."""
        rng = np.random.default_rng(0)
        batch: Tensors = {}
        for name, (dtype, row) in self._expected.items():
            ids = [np.full(feature.size, feature.cardinality or 1) for feature in self._spec.by_tensor[name]]
            scale = 1.0 if dtype == np.float32 else np.concatenate(ids).reshape(row)
            batch[name] = np.ascontiguousarray(rng.random((n, *row)) * scale, dtype)
        return batch
