"""Scores that are NaN or infinite: these rows go down the chain, the others have their answer."""

from math import inf, nan

import pytest

from engines.errors import RunError
from tests.worker.chunks import Maker
from tests.worker.scripted import Fixture, Scripted, batch, double, half
from worker.batch import Batch, Segment
from worker.breaker import State


def odd_rows(value: float) -> Scripted:
    """Half of x, and this value where x is odd."""
    return Scripted("ort", lambda xs: [value if x % 2 else x / 2 for x in xs])


@pytest.mark.parametrize("value", [nan, inf, -inf])
async def test_rows_without_a_finite_score_go_to_the_next_engine_alone(value: float) -> None:
    light = Scripted("light", double)
    good, rest = await Fixture(odd_rows(value), light).score(batch(5))
    assert (good.engine, good.reason, good.scores.tolist()) == ("ort", None, [0.0, 1.0, 2.0])
    assert (rest.engine, rest.reason, rest.scores.tolist()) == ("light", "ort:not_finite", [2.0, 6.0])
    assert [outcome.batch.features()["x"][:, 0].tolist() for outcome in (good, rest)] == [[0, 2, 4], [1, 3]]
    assert light.calls == [[1, 3]]


async def test_without_another_engine_they_alone_become_dead_letters() -> None:
    ort = odd_rows(nan)
    good, rest = await Fixture(ort).score(batch(5))
    assert (good.refused, good.scores.tolist()) == (None, [0.0, 1.0, 2.0])
    assert rest.refused is not None
    assert (rest.refused.reason, rest.batch.features()["x"][:, 0].tolist()) == ("unscorable", [1, 3])
    assert ort.calls == [[0, 1, 2, 3, 4]], "what it said of a row it says again"


async def test_a_row_that_an_engine_refuses_takes_no_other_along_where_the_next_one_has_no_score() -> None:
    def refuses_three(xs: list[float]) -> list[float]:
        if 3 in xs:
            raise RunError("index out of range")
        return half(xs)

    found = await Fixture(Scripted("ort", refuses_three), Scripted("light", lambda xs: [nan] * len(xs))).score(batch(5))
    answered = [outcome for outcome in found if outcome.refused is None]
    assert sorted(score for outcome in answered for score in outcome.scores.tolist()) == [0.0, 0.5, 1.0, 2.0]
    [refused] = [outcome for outcome in found if outcome.refused is not None]
    assert refused.batch.features()["x"][:, 0].tolist() == [3]


async def test_records_without_rows_are_in_one_part_when_a_batch_is_divided() -> None:
    chunk, bare = Maker().chunk([1000.0] * 3), Maker(partition=1).chunk([], bad=[0])
    divided = Batch([Segment(bare, 0, 0), Segment(chunk, 0, 3)], "full")
    found = await Fixture(odd_rows(nan), Scripted("light", double)).score(divided)
    assert [segment for outcome in found for segment in outcome.batch.segments if segment.chunk is bare] == [
        Segment(bare, 0, 0)
    ]


async def test_batches_without_any_finite_score_open_the_breaker_and_those_with_some_do_not() -> None:
    answers: list[float] = []
    fixture = Fixture(Scripted("ort", lambda xs: answers[: len(xs)]), Scripted("light", double))
    answers[:] = [0.5, nan]
    for _ in range(6):
        await fixture.score(batch(2))
    assert list(fixture.breakers.states()) == [("lane", State.CLOSED)]
    answers[:] = [nan, nan]
    for _ in range(3):
        (outcome,) = await fixture.score(batch(2))
        assert (outcome.engine, outcome.reason) == ("light", "ort:not_finite")
    assert list(fixture.breakers.states()) == [("lane", State.OPEN)]


async def test_scores_that_are_finite_are_one_answer() -> None:
    (outcome,) = await Fixture(Scripted("ort", half), Scripted("light", double)).score(batch(3))
    assert outcome.scores.tolist() == [0.0, 0.5, 1.0]
