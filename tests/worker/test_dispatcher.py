import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from engines.base import Features, Scores
from engines.errors import RunError
from tests.worker.chunks import Maker, ManualClock
from worker.batch import Batch, Segment
from worker.dispatcher import Dispatcher, Outcome, Tier
from worker.service_time import ServiceTime

Answer = Callable[[list[int]], list[float]]


class Scripted:
    """An engine that answers as told; the real ones cannot fail on demand."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.left_behind = 0

    async def run(self, features: Features) -> Scores:
        return np.array(self.answer(features["x"][:, 0].astype(int).tolist()), dtype=np.float32)

    async def hung(self) -> None:
        self.left_behind += 1

    def tier(self, name: str) -> Tier:
        return Tier(name, "7", self, ServiceTime(), self.hung)


def half(xs: list[int]) -> list[float]:
    return [x / 2 for x in xs]


def double(xs: list[int]) -> list[float]:
    return [x * 2 for x in xs]


def fails(xs: list[int]) -> list[float]:
    raise RunError("made so")


def batch(rows: int, bad: int = 0) -> Batch:
    return Batch([Segment(Maker().chunk([1.0] * rows, bad=range(rows, rows + bad)), 0, rows)], "full")


async def outcomes(rows: int, *engines: tuple[str, Answer]) -> list[Outcome]:
    return await Dispatcher([Scripted(answer).tier(name) for name, answer in engines], ManualClock()).score(batch(rows))


async def test_the_primary_answers_and_gives_no_reason() -> None:
    (outcome,) = await outcomes(3, ("ort", half), ("light", double))
    assert outcome.scores.tolist() == [0.0, 0.5, 1.0]
    assert (outcome.engine, outcome.version, outcome.reason) == ("ort", "7", None)


async def test_a_failure_sends_the_whole_batch_down_the_chain() -> None:
    (outcome,) = await outcomes(3, ("ort", fails), ("light", double))
    assert outcome.scores.tolist() == [0.0, 2.0, 4.0]
    assert (outcome.engine, outcome.reason) == ("light", "ort:error")


async def test_scores_that_are_not_finite_are_a_failure() -> None:
    (outcome,) = await outcomes(2, ("ort", lambda xs: [float("nan")] * len(xs)), ("light", double))
    assert (outcome.engine, outcome.reason) == ("light", "ort:not_finite")


@pytest.mark.parametrize("poison", [0, 3, 6])
async def test_one_row_that_all_engines_refuse_does_not_harm_the_others(poison: int) -> None:
    def refuses(xs: list[int]) -> list[float]:
        return fails(xs) if poison in xs else half(xs)

    found = await outcomes(7, ("ort", refuses), ("light", refuses))
    scored = {round(2 * float(s)) for outcome in found if outcome.refused is None for s in outcome.scores}
    assert scored == set(range(7)) - {poison}
    (refused,) = [outcome for outcome in found if outcome.refused is not None]
    assert refused.refused is not None
    assert refused.refused.reason == "unscorable"
    assert "made so" in str(refused.refused)
    assert refused.batch.features()["x"].tolist() == [[poison]]
    assert sum(len(outcome.batch) for outcome in found) == 7


async def test_a_batch_of_undecodable_records_asks_no_engine() -> None:
    (outcome,) = await Dispatcher([Scripted(fails).tier("ort")], ManualClock()).score(batch(0, bad=2))
    assert outcome.refused is None
    assert len(outcome.scores) == 0


async def test_the_service_time_is_learned_from_the_clock() -> None:
    clock = ManualClock()

    def slow(xs: list[int]) -> list[float]:
        clock.now += 0.25
        return half(xs)

    tier = Scripted(slow).tier("ort")
    dispatcher = Dispatcher([tier], clock)
    (outcome,) = await dispatcher.score(batch(4))
    assert outcome.service_s == 0.25
    assert tier.service_time.expected(4) == pytest.approx(0.25)


async def test_a_hung_session_is_left_behind_and_the_batch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.dispatcher.HANG_FLOOR_S", 0.0)

    class Hung(Scripted):
        async def run(self, features: Features) -> Scores:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    hung = Hung(half)
    tier = Tier("ort", "7", hung, ServiceTime(prior=(1e-4, 0.0)), hung.hung)
    (outcome,) = await Dispatcher([tier, Scripted(double).tier("light")], ManualClock()).score(batch(2))
    assert (outcome.engine, outcome.reason) == ("light", "ort:hung")
    assert hung.left_behind == 1
