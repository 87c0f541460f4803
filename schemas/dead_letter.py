"""A record that was not scored, as it is published for people and replays."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from schemas.errors import Reason

Header = tuple[str, bytes | None]

_MAX_DETAIL_BYTES: Final = 1024

_CUT_HEADERS_BYTES: Final = 192
"""Room for the headers that tell of a cut value, a left out key and left out headers."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The original record with the reason; it stays at `offset` of its own topic too."""

    reason: Reason
    detail: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()

    def to_record(self, max_bytes: int) -> tuple[bytes | None, bytes | None, list[Header]]:
        """Key, value and headers of the record to publish, at most `max_bytes` together where our headers (about
        500 bytes) leave room.

        The original key, headers and value are kept as they are while they fit, in this order. A value that does not
        is cut at the end: `scorelane.truncated` has its whole length, `scorelane.sha256` its digest. A key that does
        not is left out (`scorelane.dropped_key`: its length), and so are the headers, all of them
        (`scorelane.dropped_headers`: how many).
        """
        ours: list[Header] = [
            ("scorelane.reason", self.reason.encode()),
            ("scorelane.detail", self.detail.encode(errors="replace")[:_MAX_DETAIL_BYTES]),
            ("scorelane.topic", self.topic.encode()),
            ("scorelane.partition", b"%d" % self.partition),
            ("scorelane.offset", b"%d" % self.offset),
            ("scorelane.timestamp", b"%d" % self.timestamp_ms),
        ]
        room = max_bytes - _size(ours) - _CUT_HEADERS_BYTES
        key, headers, value = self.key, list(self.headers), self.value
        if key is not None and len(key) > room:
            ours.append(("scorelane.dropped_key", b"%d" % len(key)))
            key = None
        room -= len(key or b"")
        if _size(headers) > room:
            ours.append(("scorelane.dropped_headers", b"%d" % len(headers)))
            headers = []
        room -= _size(headers)
        if value is not None and len(value) > room:
            ours.append(("scorelane.truncated", b"%d" % len(value)))
            ours.append(("scorelane.sha256", sha256(value).hexdigest().encode()))
            value = value[: max(room, 0)]
        return key, value, headers + ours


def _size(headers: Sequence[Header]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)
