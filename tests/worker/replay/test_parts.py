"""Faults, traces, made-up traffic and moved deadlines, one by one."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.decoder import Decoder
from schemas.encoder import Encoder
from schemas.spec import ModelSpec, builtin
from tests.worker.replay.scenes import MIX
from worker.replay.device import Pace
from worker.replay.faults import DeviceFaults, Fault
from worker.replay.retime import Retimer
from worker.replay.synthetic import Traffic, make
from worker.replay.trace import MAX_PAUSE_MS, TraceError, TraceHead, TraceRecord, TraceWriter, is_trace, read


def test_a_pipe_is_not_looked_into_for_a_trace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        line = b'{"scorelane_trace": 1}\n'
        os.write(descriptor, line)
        assert not is_trace(tmp_path / "pipe")
        assert os.read(descriptor, 100) == line
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow:primary:20:2s-4s", Fault("slow", 2.0, 4.0, "primary", 20.0)),
        ("hang:ort:500ms-1s", Fault("hang", 0.5, 1.0, "ort")),
        ("lost:trt:3", Fault("lost", 3.0, engine="trt")),
        ("pause:2s-2.5s", Fault("pause", 2.0, 2.5, "")),
        ("jump:-30s:2s", Fault("jump", 2.0, engine="", amount=-30.0)),
    ],
)
def test_faults_are_read(text: str, fault: Fault) -> None:
    assert Fault.parse(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        *("slow", "slow:primary:0:1s-2s", "hang:ort:2s-1s", "lost:ort:soon", "jump:1s", ""),
        *("jump:+nans:1s", "jump:+infs:1s", "jump:-1e300s:1s", "pause:0s-1e300s", "lost:ort:nan", "hang:ort:1s-infs"),
    ],
)
def test_what_is_no_fault_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="give slow:ENGINE:FACTOR:2s-4s"):
        Fault.parse(text)


@pytest.mark.parametrize(
    ("begin", "seconds", "end"),
    [
        (0.0, 2.0, 2.0),  # done as the slowness begins
        (0.0, 3.0, 6.0),  # 2 at full speed, 4 of the window for the last one
        (1.0, 2.5, 6.5),  # 1 at full speed, the window's 4 seconds do 1, the rest after it
        (3.0, 0.5, 5.0),  # inside
        (6.0, 1.0, 7.0),  # after
    ],
)
def test_work_goes_slower_for_as_long_as_the_device_is_slow(begin: float, seconds: float, end: float) -> None:
    faults = DeviceFaults([Fault("slow", 2.0, 6.0, "ort", 4.0), Fault("slow", 0.0, 9.0, "light", 99.0)], {"ort"})
    assert faults.ends(begin, seconds) == pytest.approx(end)


def test_overlapping_slowness_is_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        DeviceFaults([Fault("slow", 1.0, 3.0), Fault("slow", 2.0, 4.0)], {"primary"})


def test_a_pace_goes_through_the_smallest_and_the_largest_batch() -> None:
    pace = Pace.through([(64, 9.0), (1, 0.003), (256, 0.258)])
    assert (pace.fixed_s, pace.row_s) == (pytest.approx(0.002), pytest.approx(0.001))
    assert Pace.through([(8, 0.5)]) == Pace(fixed_s=0.5, row_s=0.0)


records = st.builds(
    TraceRecord,
    st.integers(0, 2),
    st.floats(1e12, 1e12 + MAX_PAUSE_MS),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=50),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
)


@given(st.lists(records, max_size=10))
def test_a_trace_keeps_every_byte(tmp_path_factory: pytest.TempPathFactory, written: list[TraceRecord]) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.jsonl"
    with TraceWriter(path, TraceHead(1, "tips", 3)) as writer:
        for record in written:
            writer.write(record)
    trace = read(path)
    assert (trace.topic, trace.partitions, trace.records) == ("tips", 3, written)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("", "line 1: .*scorelane record"),
        ('{"scorelane_trace":2,"topic":"t","partitions":1}\n', "line 1: format 2"),
        ('{"scorelane_trace":1,"topic":"t","partitions":1}\n{"partition":0}\n', "line 2: .*timestamp_ms"),
        (
            '{"scorelane_trace":1,"topic":"t","partitions":1}\n'
            '{"partition":1,"timestamp_ms":1,"key":null,"value":null}\n',
            "line 2: partition 1: there are 1",
        ),
        (
            '{"scorelane_trace":1,"topic":"t","partitions":1,"more":' + "[" * 100_000,
            "line 1: not a trace: nested too deeply",
        ),
        (
            '{"scorelane_trace":1,"topic":"t","partitions":1}\n{"more":' + "[" * 100_000,
            "line 2: not a trace: nested too deeply",
        ),
    ],
)
def test_a_broken_trace_says_where(tmp_path: Path, lines: str, problem: str) -> None:
    (tmp_path / "t.jsonl").write_text(lines)
    with pytest.raises(TraceError, match=problem):
        read(tmp_path / "t.jsonl")


TRAFFIC = Traffic(rate=2000, seconds=2.0, bursts=[(0.5, 1.0, 10.0)], classes=MIX, partitions=3, bad_part=0.01, seed=4)


@pytest.mark.parametrize("name", ["tipping", "ad", "criteo", "avazu", "alimama"])
def test_made_up_events_are_events_of_the_spec(name: str) -> None:
    spec = builtin(name)
    for format in ("msgpack", "json"):
        trace = make(replace(TRAFFIC, bad_part=0.0, seconds=0.1), "t", spec, format)
        rows = Decoder(spec, format).decode([record.value for record in trace.records])
        assert rows.invalid == []
        assert len(rows) == len(trace.records)


def test_made_up_traffic_has_the_rate_the_bursts_and_the_classes_that_were_asked_for() -> None:
    trace = make(TRAFFIC, "t", builtin("tipping"), "msgpack")
    times = np.array([record.timestamp_ms - 1_760_000_000_000 for record in trace.records]) / 1000
    in_burst = (times >= 0.5) & (times < 1.0)
    assert in_burst.sum() == pytest.approx(10_000, rel=0.05)
    assert (~in_burst).sum() == pytest.approx(3_000, rel=0.08)
    named = [record.headers[0][1] for record in trace.records]
    assert named.count(b"L2") / len(named) == pytest.approx(0.3, abs=0.02)
    assert {record.partition for record in trace.records} == {0, 1, 2}
    invalid = Decoder(builtin("tipping"), "msgpack").decode([record.value for record in trace.records]).invalid
    assert len(invalid) / len(named) == pytest.approx(0.01, abs=0.004)
    assert make(TRAFFIC, "t", builtin("tipping"), "msgpack") == trace
    assert make(replace(TRAFFIC, seed=5), "t", builtin("tipping"), "msgpack") != trace


@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_an_absolute_deadline_moves_with_its_event(format: str) -> None:
    spec = builtin("tipping")
    row: dict[str, object] = {
        "event_id": "e", "room_id": 1, "streamer_id": 2, "viewer_id": 3, "gift_id": 4, "gift_count": 1, "price": 1.0,
        "combo": 1, "time_ms": 5, "features": [0.0] * 32,
    }  # fmt: skip
    encoder = Encoder(spec, format)  # type: ignore[arg-type]
    retimer = Retimer(spec, format)  # type: ignore[arg-type]
    stated, silent = encoder.encode(row | {"deadline_ms": 1000.0}), encoder.encode(row)
    decoder = Decoder(spec, format)  # type: ignore[arg-type]
    assert decoder.decode([retimer.value(stated, 250.0)]).deadline_ms.tolist() == [1250.0]
    assert retimer.value(silent, 250.0) == silent
    assert retimer.value(stated, 0) is stated
    assert retimer.value(b"\xff", 250.0) == b"\xff"
    assert retimer.value(msgspec.json.encode([1]), 250.0) == b"[1]"
    assert retimer.value(None, 250.0) is None
    deep = {"msgpack": b"\x91" * 100_000, "json": b"[" * 100_000}[format]
    assert retimer.value(deep, 250.0) is deep
    headers = (("class", b"L1"), ("deadline_ms", b"1000"))
    assert retimer.headers(headers, 250.0) == (("class", b"L1"), ("deadline_ms", b"1250.0"))
    assert retimer.headers((("deadline_ms", b"soon"),), 250.0) == (("deadline_ms", b"soon"),)


@pytest.mark.parametrize("deadline", [True, [1], 2**64 - 1, "soon"])
def test_a_deadline_that_cannot_be_moved_is_left_as_it_is(deadline: object) -> None:
    spec = ModelSpec.parse(b'event = "custom"\ndeadline = "until"\nfeatures = [{ name = "price" }]', "spec")
    event = msgspec.msgpack.encode({"until": deadline})
    assert Retimer(spec, "msgpack").value(event, 250) == event
