"""Standard output that may be a disk that fills up, or a reader that leaves."""

import io
import os
import sys
from collections.abc import Buffer

import click

from worker.errors import WorkerError


class Stdout(io.FileIO):
    """What is still buffered when a write was refused goes to nothing."""

    def write(self, data: Buffer, /) -> int:
        """Raises `WorkerError` when it is refused, and ends the command with 0 when the reader has left: it has what it
        wanted (tail --json | head)."""
        try:
            return super().write(data)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if isinstance(error, BrokenPipeError):
                raise click.exceptions.Exit(0) from error
            raise WorkerError(f"stdout: {error.strerror}") from error


def guard_stdout() -> None:
    """Have all commands' output, however they write it, go through a `Stdout`."""
    if sys.stdout is not None:  # it was closed before
        raw, old = Stdout(sys.stdout.fileno(), "wb", closefd=False), sys.stdout
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), old.encoding, old.errors, line_buffering=old.isatty())
