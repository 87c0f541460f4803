"""Record values into rows: the hot path of everything that the worker reads."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from schemas.columns import Column, instants
from schemas.errors import InvalidEvent
from schemas.refusal import refusal
from schemas.rows import EventKey, Rows, Tensors
from schemas.spec import ModelSpec
from schemas.wire import Format, Wire, wire

_Columns = tuple[list[Any], ...]


class Decoder:
    """Decodes the events of one topic for one model. Not for use by several threads at once.

    `max_event_bytes` is the largest value that is decoded; a larger one is refused unread.
    """

    def __init__(self, spec: ModelSpec, format: Format, *, max_event_bytes: int = 1 << 20) -> None:
        self.spec = spec
        self.max_event_bytes = max_event_bytes
        self._wire = wire(spec, format)
        struct = self._wire.struct()
        self._decode = (msgspec.msgpack if format == "msgpack" else msgspec.json).Decoder(struct).decode
        self._columns = {feature.name: Column(feature) for feature in spec.features}
        used = {name for name in (self._wire.key, self._wire.time, self._wire.deadline) if name is not None}
        self._used = sorted(used.union(feature.field for feature in spec.features))
        self._extract = _extractor(self._wire, self._used)

    def decode(self, values: Sequence[bytes | None]) -> Rows:
        """The events of a chunk of record values. Never raises for what is in them: see `Rows.invalid`."""
        bodies, positions, invalid = self._bodies(values)
        n = len(bodies)
        columns = dict(zip(self._used, self._extract(bodies), strict=True))
        refused: dict[int, InvalidEvent] = {}
        event_time, refused_times = self._instants(columns, self._wire.time, n)
        deadline, refused_deadlines = self._instants(columns, self._wire.deadline, n)
        tensors = self._tensors(columns, n, refused)
        keys: list[EventKey | None] = columns[self._wire.key] if self._wire.key is not None else [None] * n
        rows = Rows(tensors, keys, positions, event_time, deadline, invalid)
        refused |= refused_times | refused_deadlines
        return _without(rows, refused) if refused else rows

    def _bodies(
        self, values: Sequence[bytes | None]
    ) -> tuple[list[Any], np.ndarray[Any, np.dtype[np.int64]], list[tuple[int, InvalidEvent]]]:
        decode, limit = self._decode, self.max_event_bytes
        try:
            bodies = [decode(value) for value in values if len(value) <= limit]  # type: ignore[arg-type]
            if len(bodies) == len(values):
                return bodies, np.arange(len(values)), []
        except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
            pass  # found again below, where it is known whose it is
        bodies, positions, invalid = [], [], []
        for position, value in enumerate(values):
            if not value:
                missing = "the record has no value (a tombstone)" if value is None else "the value has no bytes"
                invalid.append((position, InvalidEvent("empty", f"event: {missing}")))
            elif len(value) > limit:
                problem = f"event: {len(value)} bytes, more than max_event_bytes = {limit}"
                invalid.append((position, InvalidEvent("too_large", problem)))
            else:
                try:
                    bodies.append(decode(value))
                    positions.append(position)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    invalid.append((position, refusal(error, self._wire.fields)))
        return bodies, np.array(positions, np.int64), invalid

    def _tensors(self, columns: dict[str, list[Any]], n: int, refused: dict[int, InvalidEvent]) -> Tensors:
        """Earlier features win where one event has several refused ones."""
        tensors: Tensors = {}
        for tensor in self.spec.tensors:
            array = np.empty((n, *tensor.shape), tensor.dtype)
            tensors[tensor.name] = array
            if n == 0:
                continue
            flat = array.reshape(n, -1)
            start = 0
            for feature in self.spec.by_tensor[tensor.name]:
                target = flat[:, start : start + feature.size]
                if bad := self._columns[feature.name].fill(columns[feature.field], target):
                    refused |= bad | refused
                start += feature.size
        return tensors

    def _instants(self, columns: dict[str, list[Any]], name: str | None, n: int) -> Any:
        if name is None or n == 0:
            return np.full(n, np.nan), {}
        return instants(columns[name], name)


def _extractor(layout: Wire, names: Sequence[str]) -> Callable[[list[Any]], _Columns]:
    """A function from bodies to one list for each field.

    Compiled, since a comprehension with a literal attribute costs a third of `attrgetter`; the attributes are our own
    (f0, f1, ...), nothing of a spec's text is in the source.
    """
    lists = "".join(f"[body.{layout.attribute(name)} for body in bodies], " for name in names)
    extract: Callable[[list[Any]], _Columns] = eval(f"lambda bodies: ({lists})")
    return extract


def _without(rows: Rows, refused: dict[int, InvalidEvent]) -> Rows:
    """`rows` less the refused ones, which join the invalid."""
    kept = np.array([row for row in range(len(rows)) if row not in refused], np.int64)
    invalid = rows.invalid + [(int(rows.positions[row]), error) for row, error in refused.items()]
    return Rows(
        {name: tensor[kept] for name, tensor in rows.tensors.items()},
        [rows.keys[row] for row in kept],
        rows.positions[kept],
        rows.event_time_ms[kept],
        rows.deadline_ms[kept],
        sorted(invalid, key=lambda item: item[0]),
    )
