"""The last resort: the same value for every row."""

import math

import numpy as np

from engines.base import Features, Scores
from engines.errors import LoadError
from engines.inputs import Inputs
from engines.package import Package
from engines.session import CpuSession


class ConstantEngine:
    """Scores every row with `value`, by default the share of positive labels that training left in the manifest."""

    inline = True
    device_bytes = 0

    def __init__(self, package: Package, *, value: float | None = None, max_batch: int = 1024) -> None:
        """Raises `LoadError` when there is no value or it is not finite."""
        found = package.manifest.metrics.get("base_rate") if value is None else value
        if not isinstance(found, int | float) or not math.isfinite(found):
            raise LoadError(f"{package.path}: constant engine: value is {found!r}; give a finite number as its value")
        self.name = "constant"
        self.version = package.version
        self.max_batch = max_batch
        self.value = float(found)
        self._inputs = Inputs(package.spec, max_batch)

    def open_session(self) -> CpuSession:
        return CpuSession(self._inputs, self._score)

    def close(self) -> None:
        """Nothing is held."""

    def _score(self, features: Features, n: int) -> Scores:
        return np.full(n, self.value, np.float32)
