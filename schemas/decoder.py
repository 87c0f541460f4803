"""Record values into rows: the hot path of everything that the worker reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.columns import Column, fill_instants
from schemas.errors import UNREADABLE, InvalidEvent, InvalidSpec
from schemas.groups import Filler, Single, grouped
from schemas.refusal import refusal
from schemas.rows import Rows
from schemas.spec import FeatureSpec, ModelSpec
from schemas.table_column import TableColumn
from schemas.tables import Table
from schemas.wire import Format, Wire, holds_integers, wire

_BLOCK: Final = 512
"""Values decoded at a time: few enough that the events' objects stay in the processor's cache and that the next block
uses their memory again (4,096 in one piece take twice the time an event), enough to spread a block's own cost.
"""

_Columns = tuple[list[Any], ...]


class Decoder:
    """Decodes the events of one topic for one model. Not for use by several threads at once.

    `max_event_bytes` is the largest value that is decoded; a larger one is refused unread.
    """

    def __init__(
        self,
        spec: ModelSpec,
        format: Format,
        *,
        max_event_bytes: int = 1 << 20,
        tables: Mapping[str, Table] | None = None,
    ) -> None:
        """`tables` are those of `open_tables`, needed when the spec names any. Raises `InvalidSpec` without them."""
        self.spec = spec
        self.max_event_bytes = max_event_bytes
        self._wire = wire(spec, format)
        struct = self._wire.struct()
        self._decode = (msgspec.msgpack if format == "msgpack" else msgspec.json).Decoder(struct).decode
        self._fills = {tensor: _fills(spec, features, tables or {}) for tensor, features in spec.by_tensor.items()}
        used = {name for name in (self._wire.key, self._wire.time, self._wire.deadline) if name is not None}
        self._used = sorted(used.union(feature.field for feature in spec.features))
        self._extract = _extractor(self._wire, self._used)

    def decode(self, values: Sequence[bytes | None]) -> Rows:
        """The events of a chunk of record values. Never raises for what is in them: see `Rows.invalid`."""
        n = len(values)
        rows = Rows(
            {tensor.name: np.empty((n, *tensor.shape), tensor.dtype) for tensor in self.spec.tensors},
            [],
            np.empty(n, np.int64),
            np.empty(n),
            np.empty(n),
        )
        refused: dict[int, InvalidEvent] = {}
        for first in range(0, n, _BLOCK):
            self._decode_block(values[first : first + _BLOCK], first, rows, refused)
        return rows if len(rows) == n and not refused else _only(rows, refused)

    def _decode_block(
        self, values: Sequence[bytes | None], first: int, rows: Rows, refused: dict[int, InvalidEvent]
    ) -> None:
        """Append the events of `values`, the first of which has the position `first`, to the rows filled so far."""
        bodies, positions, invalid = self._bodies(values)
        rows.invalid += [(first + position, error) for position, error in invalid]
        if not bodies:
            return
        start = len(rows)
        stop = start + len(bodies)
        rows.positions[start:stop] = positions + first
        columns = dict(zip(self._used, self._extract(bodies), strict=True))
        rows.keys += columns[self._wire.key] if self._wire.key is not None else [None] * len(bodies)
        bad: dict[int, InvalidEvent] = {}
        for name, instant in ((self._wire.time, rows.event_time_ms), (self._wire.deadline, rows.deadline_ms)):
            if name is None:
                instant[start:stop].fill(np.nan)
            else:
                bad |= fill_instants(columns[name], name, instant[start:stop])
        for tensor, fills in self._fills.items():
            target = rows.tensors[tensor][start:stop].reshape(len(bodies), -1)
            for filler in fills:
                bad |= filler.fill(columns, target)
        for row, error in bad.items():
            refused[start + row] = error

    def _bodies(
        self, values: Sequence[bytes | None]
    ) -> tuple[list[Any], NDArray[np.int64], list[tuple[int, InvalidEvent]]]:
        """What could be decoded, its positions, and what could not, with its positions."""
        decode, limit = self._decode, self.max_event_bytes
        try:
            if max(map(len, values)) <= limit:  # type: ignore[arg-type]
                bodies = list(map(decode, values))
                return bodies, np.arange(len(bodies)), []
        except (*UNREADABLE, TypeError):
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
                except UNREADABLE as error:
                    invalid.append((position, refusal(error, self._wire.fields)))
        return bodies, np.array(positions, np.int64), invalid


def _fills(spec: ModelSpec, features: Sequence[FeatureSpec], tables: Mapping[str, Table]) -> list[Filler]:
    """What fills the columns of one tensor."""
    fillers: list[Filler] = []
    plain: list[tuple[Single, Column]] = []
    right = 0
    for feature in features:
        left, right = right, right + feature.size
        column = Column(feature.read, integers=holds_integers(spec, feature.read))
        if not feature.table:
            plain.append((Single(feature.field, left, right, column), column))
        elif feature.table in tables:
            rows = TableColumn(feature, column, tables[feature.table])
            fillers.append(Single(feature.field, left, right, rows))
        else:
            key = f"features.{feature.name}.table"
            raise InvalidSpec("the decoder", key, f"{feature.table} is not open", "give it open_tables(...)")
    return fillers + grouped(plain)


def _extractor(layout: Wire, names: Sequence[str]) -> Callable[[list[Any]], _Columns]:
    """A function from bodies to one list for each field.

    Compiled, since a comprehension with a literal attribute costs a third of `attrgetter`; the attributes are our own
    (f0, f1, ...), nothing of a spec's text is in the source.
    """
    lists = "".join(f"[body.{layout.attribute(name)} for body in bodies], " for name in names)
    extract: Callable[[list[Any]], _Columns] = eval(f"lambda bodies: ({lists})")
    return extract


def _only(rows: Rows, refused: dict[int, InvalidEvent]) -> Rows:
    """The rows that were filled and not refused; the refused ones join the invalid."""
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
