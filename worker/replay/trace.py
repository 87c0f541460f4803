"""Recorded traffic as a file: one JSON object a line, bytes as base64, so that any record can be kept."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec

from schemas.dead_letter import Header
from schemas.errors import UNREADABLE, unreadable

FORMAT: Final = 1
MAX_PARTITIONS: Final = 10_000
LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what is later is no time in milliseconds."""
MAX_PAUSE_MS: Final = 86_400_000
"""Longest time without a record, since quiet time is played as well. Records further apart are of two recordings, or
one of their timestamps is wrong."""


class TraceHead(msgspec.Struct, frozen=True):
    """The first line."""

    scorelane_trace: int
    topic: str
    partitions: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTITIONS)]


class TraceRecord(msgspec.Struct, frozen=True, gc=False):
    """One record, as it stood in its partition. Those of a partition are in the order of their offsets."""

    partition: int
    timestamp_ms: Annotated[float, msgspec.Meta(ge=0, le=LAST_MS)]
    """Milliseconds since the epoch; recorded ones are whole."""
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class Trace(msgspec.Struct, frozen=True):
    topic: str
    partitions: int
    records: list[TraceRecord]

    @property
    def start_ms(self) -> float:
        """The first timestamp, 0 where there are no records."""
        return min((record.timestamp_ms for record in self.records), default=0.0)


class TraceError(ValueError):
    """The file is no trace, or cannot become one. The message names file, line and remedy."""


class TraceWriter:
    """Writes a trace record by record. A context manager; what was written is kept, however it ends."""

    def __init__(self, path: Path, head: TraceHead, *, force: bool = False) -> None:
        """`force` overwrites a file that is there. Raises `TraceError`."""
        self._path = path
        self._encode = msgspec.json.Encoder().encode
        try:
            self._file = path.open("wb" if force else "xb")
        except FileExistsError as error:
            raise TraceError(f"{path}: exists; take another name, or --force to overwrite it") from error
        except OSError as error:
            raise self._unwritable(error) from error
        self._write(head)

    def write(self, record: TraceRecord) -> None:
        """Raises `TraceError` when the disk refuses."""
        self._write(record)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._file.close()
        except OSError as refused:
            raise self._unwritable(refused) from refused

    def _write(self, line: TraceHead | TraceRecord) -> None:
        try:
            self._file.write(self._encode(line) + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> TraceError:
        return TraceError(f"{self._path}: cannot be written: {error.strerror}; check the path, permissions and space")


def is_trace(path: Path) -> bool:
    """Whether the file begins as every trace does; a pipe, of which this look would take a part, is none. Raises
    `OSError`."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(32).startswith(b'{"scorelane_trace"')


def read(path: Path) -> Trace:
    """The whole trace. Raises `TraceError`, `OSError`."""
    with path.open("rb") as file:
        head = _line(path, 1, file.readline(), msgspec.json.Decoder(TraceHead))
        if head.scorelane_trace != FORMAT:
            raise TraceError(f"{path}: line 1: format {head.scorelane_trace}, known is {FORMAT}; record it again")
        records = list(_records(path, head, file))
    _check_pauses(path, records)
    return Trace(head.topic, head.partitions, records)


def _records(path: Path, head: TraceHead, lines: Iterable[bytes]) -> Iterator[TraceRecord]:
    decoder = msgspec.json.Decoder(TraceRecord)
    for number, line in enumerate(lines, 2):
        record = _line(path, number, line, decoder)
        if not 0 <= record.partition < head.partitions:
            raise TraceError(f"{path}: line {number}: partition {record.partition}: there are {head.partitions}")
        yield record


def _check_pauses(path: Path, records: Sequence[TraceRecord]) -> None:
    in_time = sorted((record.timestamp_ms, number) for number, record in enumerate(records, 2))
    for count, ((before_ms, before), (after_ms, after)) in enumerate(pairwise(in_time), 1):
        if after_ms - before_ms > MAX_PAUSE_MS:
            odd, other = (before, after) if 2 * count <= len(records) else (after, before)
            raise TraceError(
                f"{path}: line {odd}: timestamp_ms is more than a day from line {other}, the next one in time; correct "
                "it, or play the two parts one by one"
            )


def _line[T](path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(line)
    except UNREADABLE as error:
        remedy = "make one with `scorelane record TOPIC --out FILE`"
        raise TraceError(f"{path}: line {number}: not a trace: {unreadable(error)}; {remedy}") from error
