"""The contract between an engine and its callers. Everything here is blocking; asyncio stays outside.

An engine holds a model's weights and is shared by all threads. A session is one lane's execution state (a CUDA stream,
its context and buffers; an ONNX Runtime binding). A session is confined: `submit` is called by one thread, `collect` by
one thread (the same one when `depth` is 1), and at most `depth` batches are between the two.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Features = Mapping[str, NDArray[np.generic]]
"""Tensor name -> [n, *row shape], C-contiguous, dtypes and row shapes as in the model's spec, n the same everywhere."""

Scores = NDArray[np.float32]
"""[n] probabilities or values, row i for input row i."""


class Session(Protocol):
    depth: int
    """Batches that may be submitted and not yet collected: 1, or 2 where filling overlaps with execution."""

    def submit(self, features: Features) -> None:
        """Take the next batch. `features` may be reused by the caller only after its `collect` has returned.

        Raises `RunError` (also for n = 0, n above the engine's `max_batch`, wrong names, dtypes or shapes) or
        `DeviceLost`. After an error nothing of this batch is pending.
        """

    def collect(self) -> Scores:
        """Wait for the oldest submitted batch and return its scores, an array that the caller owns.

        Raises `RunError` or `DeviceLost` for that batch; the batch is no longer pending either way.
        """

    def close(self) -> None:
        """Release everything. Idempotent. Pending batches are dropped."""


class Engine(Protocol):
    name: str
    """Kind of engine as it stands in each score: trt, ort, trees, light, constant."""
    version: str
    """Version of the model."""
    max_batch: int
    """Largest n of one `submit`."""

    inline: bool
    """True when a batch takes well under a millisecond and cannot hang, so that it may run on the caller's own thread:
    a hop to another thread and back costs more than the batch."""

    device_bytes: int
    """Device memory that the weights take, without the sessions; 0 on the CPU."""

    def open_session(self) -> Session:
        """A new session, warm: its first `submit` costs what later ones cost. Raises `LoadError`, `OutOfMemory`."""

    def close(self) -> None:
        """Release the weights. All sessions must be closed before. Idempotent."""


def run(session: Session, features: Features) -> Scores:
    """Score one batch and wait for it."""
    session.submit(features)
    return session.collect()


def batch_size(features: Features) -> int:
    """Rows in a batch (0 when there is no tensor)."""
    for tensor in features.values():
        return len(tensor)
    return 0
