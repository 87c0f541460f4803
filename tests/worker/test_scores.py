import msgspec
import numpy as np
import pytest

from schemas.score import JsonScore, Score
from schemas.wire import Format
from tests.worker.chunks import Maker
from worker.batch import Batch, Segment
from worker.outcome import Outcome
from worker.scores import ScoreEncoder, event_keys


def encoded(
    format: Format, maker: Maker, keys: list[str | int | None], record_keys: bool = True
) -> list[Score | JsonScore]:
    """Rows 1.. of a chunk whose deadlines are 10.0, 10.1, ..., scored at 10.15 with 0.5, 0.75, ..."""
    chunk = maker.chunk([10.0 + 0.1 * i for i in range(len(keys))], keys=keys, record_keys=record_keys)
    chunk.rows.event_time_ms[-1] = 777.0
    segment = Segment(chunk, 1, len(keys))
    scores = np.array([0.5 + 0.25 * i for i in range(len(keys) - 1)], dtype=np.float32)
    outcome = Outcome(Batch([segment], "full"), scores, "light", "m", "v9", "ort:error", 10.15, 0.001)
    values = ScoreEncoder(format).encode(segment, scores, outcome, now=10.25, wall_ms=5_000.0)
    if format == "msgpack":
        return [msgspec.msgpack.decode(value, type=Score) for value in values]
    return [msgspec.json.decode(value, type=JsonScore) for value in values]


@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_each_score_says_what_it_is_of_and_who_made_it(format: Format) -> None:
    made = Score if format == "msgpack" else JsonScore
    assert encoded(format, Maker(partition=3, next_offset=40), ["a", "b", 7]) == [
        # Deadline 10.1 passed 50 ms before; no event time of its own, so the record's: 1000 + offset.
        made("b", 0.5, "m", "v9", "light", "ort:error", "t", 3, 41, 1041, 4_900, True, -50),
        made(7, 0.75, "m", "v9", "light", "ort:error", "t", 3, 42, 777, 4_900, False, 50),
    ]


@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_without_a_key_of_its_own_an_event_has_the_records_else_its_coordinates(format: Format) -> None:
    keyed = encoded(format, Maker(), [None, None, "own"])
    assert [score.key for score in keyed] == ["k1", "own"]
    bare = encoded(format, Maker(partition=2, next_offset=9), [None, None, "own"], record_keys=False)
    assert [score.key for score in bare] == ["t-2-10", "own"]


def test_a_huge_record_key_is_not_repeated_in_the_score() -> None:
    maker = Maker(partition=2, next_offset=9)
    chunk = maker.chunk([10.0, 10.1], keys=[None, None])
    chunk.keys = [b"k" * 4096, b"k" * 4097]
    assert event_keys(Segment(chunk, 0, 2)) == ["k" * 4096, "t-2-10"]
