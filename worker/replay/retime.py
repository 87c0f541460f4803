"""Absolute deadlines of recorded events, moved to the time at which the events come now."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from schemas.dead_letter import Header
from schemas.errors import UNREADABLE
from schemas.spec import ModelSpec
from schemas.wire import Format, wire
from worker.deadline import DEADLINE_HEADER, header_deadline_ms


class Retimer:
    """Adds milliseconds to an event's deadline field and header. What cannot be read is left as it is."""

    def __init__(self, spec: ModelSpec, format: Format) -> None:
        body = wire(spec, format)
        names = [field.name for field in body.fields]
        self._place: int | str | None = None
        if body.deadline is not None:
            self._place = names.index(body.deadline) if body.is_array else body.deadline
        self._decode: Callable[[bytes], Any]
        self._encode: Callable[[Any], bytes]
        if format == "msgpack":
            self._decode, self._encode = msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode
        else:
            self._decode, self._encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode

    def value(self, value: bytes | None, shift_ms: float) -> bytes | None:
        if self._place is None or value is None or not shift_ms:
            return value
        try:
            body = self._decode(value)
            deadline = body[self._place]
            if not isinstance(deadline, int | float) or isinstance(deadline, bool):
                return value
            body[self._place] = deadline + shift_ms
            return self._encode(body)
        except (*UNREADABLE, LookupError, TypeError, OverflowError):  # the last: an integer that no format holds
            return value

    def headers(self, headers: Sequence[Header], shift_ms: float) -> Sequence[Header]:
        deadline = header_deadline_ms(headers)
        if not shift_ms or deadline != deadline:
            return headers
        moved = repr(deadline + shift_ms).encode()
        return tuple((name, moved if name == DEADLINE_HEADER else value) for name, value in headers)
