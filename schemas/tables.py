"""Tables of static embeddings: float32 matrices in .npy files, one row an id, memory-mapped and refreshed while in use.

The file is replaced as a whole, by renaming a new one over it, as `write_table` does. It must not be written in place:
a mapped file that becomes shorter ends the process that reads it.
"""

import logging
import mmap
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.errors import InvalidSpec, brief, remedy_of
from schemas.spec import ModelSpec

log = logging.getLogger("scorelane.tables")

CHECK_S: Final = 1.0
"""Shortest time between two looks at the file: a look is one system call."""

Signature = tuple[int, int, int]
"""Time of change, size and inode: no replacement leaves all three as they were."""


class Table:
    """The rows of one file, as it is now or was when it was last whole."""

    def __init__(self, path: Path, width: int, now: Callable[[], float] = time.monotonic) -> None:
        """`width` is the number of columns. Raises `InvalidSpec` when the file cannot be used."""
        self._path = path
        self._width = width
        self._now = now
        self._looked = self._seen = _signature(path)
        self._rows = _mapped(path, width)
        self._check_at = now() + CHECK_S

    def rows(self) -> NDArray[np.float32]:
        """[rows, width], not writable. Looks for a new file, at most every `CHECK_S`; a broken one is logged once and
        the rows stay as they were. One that the system does not let be read is tried again at each look."""
        now = self._now()
        if now >= self._check_at:
            self._check_at = now + CHECK_S
            self._refresh()
        return self._rows

    def _refresh(self) -> None:
        signature = _signature(self._path)
        if signature != self._seen:
            try:
                self._rows = _mapped(self._path, self._width)
                self._seen = signature
                log.info("%s: %d rows read again", self._path, len(self._rows))
            except InvalidSpec as error:
                if signature != self._looked:
                    log.error("%s; the rows read before stay in use", error)
                if not isinstance(error.__cause__, OSError):  # of the file itself: another look finds the same
                    self._seen = signature
        self._looked = signature


def open_tables(
    spec: ModelSpec, directories: Sequence[Path], now: Callable[[], float] = time.monotonic
) -> dict[str, Table]:
    """The tables that the spec's features name, by name, each from the first of `directories` that has it.

    Raises `InvalidSpec` for a file that is missing or cannot be used.
    """
    tables: dict[str, Table] = {}
    for feature in spec.features:
        if feature.table and feature.table not in tables:
            key = f"features.{feature.name}.table"
            try:
                path = next((path for path in (d / feature.table for d in directories) if path.is_file()), None)
            except OSError as error:
                problem = f"cannot be read ({error.strerror})"
                raise InvalidSpec(error.filename, key, problem, remedy_of(error, "check the path")) from error
            if path is None:
                places = " nor in ".join(map(str, directories))
                raise InvalidSpec(feature.table, key, f"not in {places}", "put it there")
            tables[feature.table] = Table(path, feature.size, now)
    return tables


def write_table(path: Path, rows: NDArray[np.float32]) -> None:
    """Write [rows, width] so that a reader sees the old file or the new one, whole. Raises `OSError`."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            np.save(file, np.ascontiguousarray(rows, "<f4"), allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _mapped(path: Path, width: int) -> NDArray[np.float32]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe is to wait for who writes into it
            raise ValueError("no regular file")
        rows = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # the header is a Python literal: a damaged one can raise anything
        problem, otherwise = f"cannot be read ({brief(error)})", "write it with write_table"
        mend = remedy_of(error, otherwise) if isinstance(error, OSError) else otherwise
        raise InvalidSpec(str(path), "table", problem, mend) from error
    if rows.dtype != np.dtype("<f4") or rows.ndim != 2 or not rows.flags.c_contiguous or not len(rows):
        problem = f"holds {rows.dtype}{list(rows.shape)}"
        raise InvalidSpec(str(path), "table", problem, f"write a float32 matrix in C order, [rows, {width}]")
    if rows.shape[1] != width:
        problem = f"its rows have {rows.shape[1]} columns, the feature's shape is [{width}]"
        raise InvalidSpec(str(path), "table", problem, "correct the shape, or write the table anew")
    # Read ahead in the background, so that the first events of each id do not wait for the disk.
    with suppress(OSError):
        rows._mmap.madvise(mmap.MADV_WILLNEED)  # type: ignore[attr-defined]
    return rows.view(np.ndarray)
