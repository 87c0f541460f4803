"""Bytes that are nested too deeply to be decoded: wherever they come from, they are refused as others are."""

from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from engines import plans
from engines.errors import LoadError
from engines.package import MANIFEST, Package
from schemas.encoder import Encoder
from schemas.errors import InvalidEvent, InvalidSpec
from schemas.samples import rows
from schemas.spec import ModelSpec, builtin
from schemas.wire import Format
from tests.engines.test_plans import put
from tests.models import tiny_package
from tests.worker.replay.scenes import LIGHT, PRIMARY, config, package
from tests.worker.test_cli import NO_BROKER, scorelane
from worker.cli.scores import ScoreCounts, ScoreReader, alarm
from worker.replay.pipeline import Scene, play
from worker.replay.synthetic import Traffic, make
from worker.replay.trace import TraceError, read

JSON = b'{"a":' * 5000
DEEP: dict[Format, bytes] = {"json": JSON, "msgpack": b"\x81\xa1a" * 30_000}
EVEN = Traffic(rate=100, seconds=1.0, poisson=False, partitions=1)


@pytest.mark.parametrize("format", DEEP)
def test_a_replay_makes_a_dead_letter_of_such_an_event(format: Format) -> None:
    trace = make(EVEN, "tips", package().spec, format)
    trace.records[50] = msgspec.structs.replace(trace.records[50], value=DEEP[format])
    # At another speed, so that the events' own deadlines are moved.
    whole, paces = config(format=format), {"ort": PRIMARY, "light": LIGHT}
    first, *others = play(Scene(config=whole, trace=trace, speed=2.0, paces=paces)).report.classes
    assert (first.events, sum(first.dead_letters.values()), first.lost) == (100, 1, 0)
    assert sum(one.events for one in others) == 0


@pytest.mark.parametrize("value", DEEP.values())
def test_tail_counts_such_a_record_as_no_score(value: bytes) -> None:
    counts = ScoreCounts()
    counts.add(ScoreReader().read(value) or alarm(value))
    assert str(counts) == "0 scores, 0 late, 1 records that are no scores"


def test_produce_names_the_line_and_how_it_is_sent_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b'{"I1": 1}\n' + JSON + b"\n")
    ran = scorelane("produce", file, "--topic", "t", "--bootstrap", NO_BROKER, "--model", "criteo")
    assert ran.returncode == 2
    assert ran.stderr == (
        f"scorelane: {file}: line 2: nested too deeply; correct the line, or send the lines as they are with --as-is\n"
    )


def test_a_value_that_can_just_be_read_is_refused_by_its_field(tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return '{"I1": ' + "[" * depth + "]" * depth + "}\n"

    file = tmp_path / "events.jsonl"
    encoder = Encoder(builtin("criteo"), "json")
    other = Encoder(ModelSpec.parse(b'event = "custom"\nkey = "I1"\nfeatures = [{ name = "price" }]', "spec"), "json")
    read = 0
    for depth in range(100, 3000, 7):
        file.write_text(nested(depth))
        try:
            [row] = rows(file)
        except ValueError:
            break
        read += 1
        with pytest.raises(InvalidEvent, match="wrong_type: I1: "):
            encoder.encode(row)
        with suppress(InvalidEvent):
            assert other.encode(row) == f'{{"I1":{"[" * depth}{"]" * depth}}}'.encode()
    assert read > 10


def test_a_trace_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"scorelane_trace":1,"topic":"t","partitions":1}\n{"more":' + JSON + b"\n")
    with pytest.raises(TraceError, match=r"line 2: not a trace: nested too deeply; make one with"):
        read(path)


def test_a_manifest_a_plan_and_a_spec_are_named(tmp_path: Path) -> None:
    made = tiny_package(tmp_path / "models")
    (made.path / MANIFEST).write_bytes(b'{"more":' + JSON)
    with pytest.raises(LoadError, match=r"manifest\.json: not a manifest: nested too deeply; write the package again"):
        Package.open(made.path)
    sidecar = put(tmp_path).path.with_suffix(".json")
    sidecar.write_bytes(JSON)
    with pytest.raises(LoadError, match=rf"{sidecar.name}: not a plan's description: nested too deeply; delete it"):
        plans.found(tmp_path)
    with pytest.raises(InvalidSpec, match=r"spec: file: is not valid JSON \(nested too deeply\)"):
        ModelSpec.parse(JSON, "spec")
