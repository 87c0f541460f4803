"""The memory of one session, taken once: pinned slots to fill and read, and one device block that all buckets share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines import buckets
from engines.base import Features, Scores
from engines.buckets import Bucket, Layout, Run
from engines.cuda import Device

SLOTS = 2
"""Pinned slots of a bucket: one is filled while the other is copied from and into."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One bucket's packed inputs and scores in pinned memory."""

    packed: NDArray[np.uint8]
    """All inputs, as one copy moves them."""
    output: NDArray[np.uint8]
    scores: Scores
    """`output` as [batch] float32."""
    inputs: tuple[tuple[str, NDArray[np.generic], int | None], ...]
    """(name, view of `packed` as [batch, ...], length to which the caller's axis 1 is cut)."""

    def fill(self, features: Features, run: Run) -> None:
        """Copy the run's rows in. Rows beyond them keep what they had, which is valid input and never handed out."""
        count, rows = run.count, run.rows
        for name, view, cut in self.inputs:
            tensor = features[name]
            if cut is not None:
                tensor = tensor[:, :cut]
            view[:count] = tensor if rows is None else tensor[rows]


class Arena:
    """Pinned slots for every bucket, twice, and the device block. Close it with the context current.

    Pad rows are zeros or rows of earlier batches of the same bucket, never another bucket's bytes: an id read from
    foreign bytes would make the model gather outside its tables. That is why slots do not share pinned memory. On the
    device they do, since one stream runs one bucket at a time and each copy in overwrites all of its inputs.
    """

    def __init__(
        self,
        device: Device,
        grid: Sequence[Bucket],
        dtypes: Mapping[str, np.dtype[np.generic]],
        rows: Mapping[str, tuple[int, ...]],
    ) -> None:
        """`rows` are the shapes of the caller's rows. Raises `OutOfMemory` (inside `Device.guard`)."""
        self.layouts = [buckets.layout(bucket, dtypes) for bucket in grid]
        self.pinned_bytes = SLOTS * sum(layout.total_bytes for layout in self.layouts)
        self.device_bytes = max(layout.total_bytes for layout in self.layouts)
        # Pinned memory first: if the device then refuses, the exception's frames must not keep the pages.
        self._pinned = device.pinned(self.pinned_bytes)
        try:
            self._block: Any = device.memory(self.device_bytes)
        except BaseException:
            self._pinned.close()
            raise
        self.slots: list[tuple[Slot, ...]] = []
        at = 0
        for bucket, layout in zip(grid, self.layouts, strict=True):
            pair = []
            for _ in range(SLOTS):
                pair.append(_slot(self._pinned.array[at : at + layout.total_bytes], bucket, layout, dtypes, rows))
                at += layout.total_bytes
            self.slots.append(tuple(pair))

    @property
    def address(self) -> int:
        """Device address at which every bucket's layout begins."""
        return int(self._block)

    def close(self) -> None:
        """Give the memory back; nothing on the device may still use it. Idempotent."""
        self.slots = []
        self._block = None
        self._pinned.close()


def _slot(
    block: NDArray[np.uint8],
    bucket: Bucket,
    layout: Layout,
    dtypes: Mapping[str, np.dtype[np.generic]],
    rows: Mapping[str, tuple[int, ...]],
) -> Slot:
    inputs = []
    for name, shape in bucket.shapes.items():
        start = layout.offsets[name]
        nbytes = int(np.prod(shape)) * dtypes[name].itemsize
        view = block[start : start + nbytes].view(dtypes[name]).reshape(shape)
        inputs.append((name, view, shape[1] if shape[1:] != rows[name] else None))
    output = block[layout.output_offset : layout.output_offset + 4 * bucket.batch]
    return Slot(block[: layout.input_bytes], output, output.view(np.float32), tuple(inputs))
