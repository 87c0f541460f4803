"""What the client's compiled decoder refuses and a record may have all the same."""

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from aiokafka import TopicPartition
from aiokafka.client import ConnectionGroup
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_UNCOMMITTED, PartitionRecords
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from worker.fetching import drop_held, keep_records_bare

A = TopicPartition("t", 0)
Header = tuple[str, bytes | None]


class OddName(str):
    """A header name that other clients can write and ours cannot."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"\xff\xfeid"


ODD: Header = (OddName("?"), b"\xff\x00")


def batch(first: int, headers: Sequence[list[Header]], codec: int) -> bytes:
    """A batch of records at `first`, `first + 1`, ..., record i with the key "i", value "vi" and `headers[i]`."""
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, -1, 1 << 16)
    for index, of_one in enumerate(headers):
        assert builder.append(index, 1_000 + index, b"%d" % index, b"v%d" % index, of_one) is not None
    built = bytearray(builder.build())
    built[:8] = first.to_bytes(8, "big")  # not under the checksum; the brokers do the same
    return bytes(built)


def partition_records(raw: bytes, offset: int) -> PartitionRecords:
    """As the fetcher makes it and `keep_records_bare` has it stored."""
    consumer = SimpleNamespace(_fetcher=SimpleNamespace(_records={}))
    keep_records_bare(consumer)
    made = PartitionRecords(A, fetcher.MemoryRecords(raw), None, offset, None, None, True, READ_UNCOMMITTED)
    consumer._fetcher._records[A] = SimpleNamespace(_partition_records=made)
    return made


@pytest.mark.parametrize("codec", [0, 1, 4], ids=["plain", "gzip", "zstd"])
def test_a_header_name_that_is_no_utf8_does_not_keep_the_record_or_its_neighbours(codec: int) -> None:
    raw = b"".join(
        batch(first, headers, codec)
        for first, headers in [(10, [[("a", b"1")], []]), (12, [[], [("é", None), ODD], []]), (20, [[ODD]])]
    )
    records = partition_records(raw, 11)
    found = [(r.offset, r.timestamp, r.key, r.value, list(r.headers)) for r in records]
    assert found == [
        (11, 1_001, b"1", b"v1", []),
        (12, 1_000, b"0", b"v0", []),
        (13, 1_001, b"1", b"v1", [("é", None), ("\\xff\\xfeid", b"\xff\x00")]),
        (14, 1_002, b"2", b"v2", []),
        (20, 1_000, b"0", b"v0", [("\\xff\\xfeid", b"\xff\x00")]),
    ]
    assert records.next_fetch_offset == 21


def test_what_the_brokers_cut_off_is_left_to_the_next_fetch() -> None:
    raw = batch(0, [[ODD], []], 0) + batch(2, [[]], 0)[:-3]
    records = partition_records(raw, 0)
    assert [record.offset for record in records] == [0, 1]
    assert records.next_fetch_offset == 2


def test_only_connections_that_carry_records_and_wait_for_an_answer_are_dropped() -> None:
    class Connection:
        def __init__(self, *requests: str) -> None:
            self._requests = deque(requests)
            self.closed = False

        def close(self) -> None:
            self.closed = True

    held, idle, heartbeats = Connection("fetch"), Connection(), Connection("heartbeat")
    connections = {
        (1, ConnectionGroup.DEFAULT): held,
        (2, ConnectionGroup.DEFAULT): idle,
        (1, ConnectionGroup.COORDINATION): heartbeats,
    }
    drop_held(SimpleNamespace(_client=SimpleNamespace(_conns=connections)))  # type: ignore[arg-type]
    assert (held.closed, idle.closed, heartbeats.closed) == (True, False, False)
