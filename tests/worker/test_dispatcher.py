import asyncio
from math import inf

import numpy as np
import pytest

from engines.errors import DeviceLost
from tests.worker.chunks import Maker
from tests.worker.scripted import Answer, Fixture, Scripted, batch, double, fails, half
from worker.batch import Batch, Segment
from worker.breaker import Cause, State
from worker.classes import ShedPolicy
from worker.errors import NoEngineLeft
from worker.outcome import SKIPPED, Outcome
from worker.route import RoutePolicy, SegmentRule
from worker.service_time import REFRESH_S


async def outcomes(rows: int, *engines: tuple[str, Answer]) -> list[Outcome]:
    return await Fixture(*(Scripted(name, answer) for name, answer in engines)).score(batch(rows))


async def test_the_primary_answers_and_gives_no_reason() -> None:
    (outcome,) = await outcomes(3, ("ort", half), ("light", double))
    assert outcome.scores.tolist() == [0.0, 0.5, 1.0]
    assert (outcome.engine, outcome.model, outcome.version, outcome.reason) == ("ort", "m", "7", None)


async def test_a_failure_sends_the_whole_batch_down_the_chain() -> None:
    (outcome,) = await outcomes(3, ("ort", fails), ("light", double))
    assert outcome.scores.tolist() == [0.0, 2.0, 4.0]
    assert (outcome.engine, outcome.reason) == ("light", "ort:error")


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
    engine = Scripted("ort", half)
    (outcome,) = await Fixture(engine).score(batch(0, bad=2))
    assert outcome.refused is None
    assert engine.calls == []


async def test_failures_open_the_breaker_and_the_primary_is_asked_no_more() -> None:
    primary = Scripted("ort", fails)
    fixture = Fixture(primary, Scripted("light", double))
    for _ in range(3):
        await fixture.score(batch(1))
    (outcome,) = await fixture.score(batch(1))
    assert outcome.reason == "ort:breaker:open"
    assert len(primary.calls) == 3
    assert [(move.after, move.cause) for _, move in fixture.moves] == [(State.OPEN, Cause.ERRORS)]


async def test_a_half_open_breaker_probes_in_the_shadow_until_it_closes() -> None:
    primary = Scripted("ort", fails)
    fixture = Fixture(primary, Scripted("light", double))
    for _ in range(3):
        await fixture.score(batch(1))
    primary.answer = half
    fixture.clock.now = 1.0
    reasons = [(await fixture.score(batch(1)))[0].reason for _ in range(4)]
    assert reasons == ["ort:breaker:half_open"] * 3 + [None]
    assert [move.after for _, move in fixture.moves] == [State.OPEN, State.HALF_OPEN, State.CLOSED]


async def test_a_lost_device_opens_the_breakers_of_all_lanes() -> None:
    def lost(xs: list[int]) -> list[float]:
        raise DeviceLost("made so")

    fixture = Fixture(Scripted("ort", lost), Scripted("light", double))
    other = fixture.breakers.open_lane("other")
    (outcome,) = await fixture.score(batch(1))
    assert (outcome.engine, outcome.reason) == ("light", "ort:device_lost")
    assert fixture.breakers.lost
    assert other.refused(0.0) == Cause.DEVICE_LOST


async def test_rows_with_too_little_budget_go_to_the_light_engine_and_the_others_do_not_wait_for_it() -> None:
    primary, light = Scripted("ort", half), Scripted("light", double)
    fixture = Fixture(primary, light, policy=RoutePolicy(above_s={"ort": 0.050}))
    chunk = Maker().chunk([0.040, 0.060, 0.050, 0.070])
    found = await fixture.score(Batch([Segment(chunk, 0, 4)], "full"))
    assert primary.calls == [[1, 3]]
    assert light.calls == [[0, 2]]
    assert {(o.engine, o.reason, tuple(o.scores.tolist())) for o in found} == {
        ("ort", None, (0.5, 1.5)),
        ("light", "ort:budget", (0.0, 4.0)),
    }


async def test_rows_that_go_to_the_light_engine_are_answered_while_the_primary_still_works() -> None:
    primary, light = Scripted("ort", half), Scripted("light", double)
    primary.go.clear()
    fixture = Fixture(primary, light, policy=RoutePolicy(above_s={"ort": 0.050}))
    chunk, bare = Maker().chunk([0.040, 1000.0]), Maker(partition=1).chunk([], bad=[0])
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        slow, quick = fixture.dispatcher.start(Batch([Segment(bare, 0, 0), Segment(chunk, 0, 2)], "full"), tasks)
        assert [outcome.engine for outcome in await quick.answer] == ["light"]
        assert not slow.answer.done()
        primary.go.set()
        assert [outcome.engine for outcome in await slow.answer] == ["ort"]
    empty = [segment for part in (slow, quick) for segment in part.batch.segments if segment.start == segment.stop]
    assert empty == [Segment(bare, 0, 0)], "what holds no row is settled once"


async def test_an_engine_that_is_predicted_too_slow_sees_a_shadow_now_and_then() -> None:
    slow, light = Scripted("ort", half, prior=(10.0, 0.0)), Scripted("light", double)
    fixture = Fixture(slow, light, policy=RoutePolicy())
    fixture.clock.now = 1.0
    (outcome,) = await fixture.score(batch(1, deadline=2.0))
    assert (outcome.engine, outcome.reason) == ("light", "ort:budget")
    assert len(slow.calls) == 1
    (outcome,) = await fixture.score(batch(1, deadline=2.0))
    assert outcome.engine == "ort", "the shadow showed that it is quick after all"


@pytest.mark.parametrize(
    ("policy", "engine", "scored"), [("score", "ort", 2), ("light", "light", 2), ("skip", SKIPPED, 0)]
)
async def test_late_rows_go_by_the_late_policy(policy: str, engine: str, scored: int) -> None:
    fixture = Fixture(
        Scripted("ort", half),
        Scripted("light", double),
        policy=RoutePolicy(late=policy),  # type: ignore[arg-type]
    )
    fixture.clock.now = 5.0
    (outcome,) = await fixture.score(batch(2, deadline=4.0))
    assert (outcome.engine, len(outcome.scores), outcome.refused) == (engine, scored, None)
    assert outcome.reason == (None if policy == "score" else f"late:{policy}")


async def test_an_engine_that_is_too_slow_for_every_row_is_tried_again_though_late_rows_are_skipped() -> None:
    engine = Scripted("ort", half)
    fixture = Fixture(engine, policy=RoutePolicy(late="skip"))
    answered = []
    for now in (0.0, REFRESH_S / 2, REFRESH_S):
        fixture.clock.now = now
        (outcome,) = await fixture.score(batch(1, deadline=now + 1.0))
        answered.append((outcome.engine, outcome.reason))
        for _ in range(3):
            engine.service_time.observe(1, 10.0)
    assert answered == [("ort", None), (SKIPPED, "late:skip"), ("ort", None)]


async def test_rows_given_up_by_the_batcher_say_so() -> None:
    given_up = batch(2, shed="skip")
    given_up.shed_why = "late"
    (outcome,) = await Fixture(Scripted("ort", half)).score(given_up)
    assert (outcome.engine, outcome.reason) == (SKIPPED, "late:skip")


async def test_late_rows_can_be_dead_lettered() -> None:
    fixture = Fixture(Scripted("ort", half), policy=RoutePolicy(late="dead_letter"))
    fixture.clock.now = 5.0
    (outcome,) = await fixture.score(batch(2, deadline=4.0))
    assert outcome.refused is not None
    assert outcome.refused.reason == "late"
    assert len(outcome.batch) == 2


@pytest.mark.parametrize(("shed", "engine"), [("light", "light"), ("skip", SKIPPED), ("dead_letter", SKIPPED)])
async def test_shed_rows_never_reach_the_primary(shed: ShedPolicy, engine: str) -> None:
    primary = Scripted("ort", half)
    (outcome,) = await Fixture(primary, Scripted("light", double)).score(batch(2, shed=shed))
    assert (outcome.engine, outcome.reason) == (engine, "shed:timeout")
    assert (outcome.refused is not None) == (shed == "dead_letter")
    assert primary.calls == []


def segmented(own: Scripted) -> tuple[Fixture, Batch]:
    """The second and the third of a batch's rows are of a segment with an engine of its own."""
    rule = SegmentRule(name="new", engine=own.name, tensor="who", values=frozenset({2}))
    policy = RoutePolicy(above_s={"ort": -inf}, segments=(rule,))
    fixture = Fixture(Scripted("ort", half), Scripted("light", double), policy=policy, segments=[own])
    chunk = Maker().chunk([1000.0] * 3)
    chunk.rows.tensors["who"] = np.array([[1], [2], [2]], dtype=np.int32)
    return fixture, Batch([Segment(chunk, 0, 3)], "full")


def found(outcomes: list[Outcome]) -> set[tuple[str, str | None, tuple[float, ...]]]:
    return {(outcome.engine, outcome.reason, tuple(outcome.scores.tolist())) for outcome in outcomes}


async def test_a_segment_goes_to_its_own_engine_and_falls_back_to_the_chain() -> None:
    own = Scripted("new:light", double)
    fixture, whole = segmented(own)
    assert found(await fixture.score(whole)) == {("ort", None, (0.0,)), ("new:light", "segment:new", (2.0, 4.0))}
    own.answer = fails
    assert found(await fixture.score(whole)) == {("ort", None, (0.0,)), ("ort", "segment:new", (0.5, 1.0))}


async def test_a_segments_engine_that_fails_is_left_alone_and_probed_until_it_is_back() -> None:
    own = Scripted("new:ort", fails)
    fixture, whole = segmented(own)
    for _ in range(3):
        await fixture.score(whole)
    assert found(await fixture.score(whole)) == {("ort", None, (0.0, 0.5, 1.0))}
    assert len(own.calls) == 3
    own.answer = half
    fixture.clock.now = 1.0
    for _ in range(3):
        assert found(await fixture.score(whole)) == {("ort", None, (0.0, 0.5, 1.0))}
    assert [move.after for _, move in fixture.moves] == [State.OPEN, State.HALF_OPEN, State.CLOSED]
    assert own.calls[3:] == [[0, 1, 2]] * 3, "in the shadow"
    assert found(await fixture.score(whole)) == {("ort", None, (0.0,)), ("new:ort", "segment:new", (0.5, 1.0))}


async def test_a_segments_engine_sees_no_rows_of_others_while_it_is_well() -> None:
    own = Scripted("new:ort", half)
    fixture, _ = segmented(own)
    chunk = Maker().chunk([1000.0])
    chunk.rows.tensors["who"] = np.array([[1]], dtype=np.int32)
    fixture.clock.now = 10 * REFRESH_S
    await fixture.score(Batch([Segment(chunk, 0, 1)], "full"))
    assert own.calls == []


async def test_a_device_lost_in_a_segments_engine_is_noticed_by_the_first_batch() -> None:
    def lost(xs: list[int]) -> list[float]:
        raise DeviceLost("made so")

    own = Scripted("new:trt", lost)
    fixture, whole = segmented(own)
    for _ in range(2):
        await fixture.score(whole)
    assert (fixture.segment_breakers.lost, fixture.breakers.lost, len(own.calls)) == (True, False, 1)


async def test_undecodable_records_are_kept_when_a_batch_is_divided() -> None:
    fixture = Fixture(Scripted("ort", half), Scripted("light", double), policy=RoutePolicy(above_s={"ort": 0.050}))
    maker = Maker()
    segments = [Segment(maker.chunk([], bad=[0, 1]), 0, 0), Segment(maker.chunk([0.040, 0.060]), 0, 2)]
    for outcome in await fixture.score(Batch(segments, "full")):
        for segment in outcome.batch.segments:
            segment.settle()
    assert maker.ledger.unsettled == 0


async def test_a_batch_that_hangs_the_last_engine_waits_for_its_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.attempt.HANG_FLOOR_S", 0.01)
    engine = Scripted("ort", half, prior=(1e-4, 0.0))
    engine.sessions = 2
    engine.go.clear()
    left_behind = engine.hung

    async def hung() -> None:
        await left_behind()
        engine.go.set()  # the next session answers

    engine.hung = hung  # type: ignore[method-assign]
    (outcome,) = await Fixture(engine).score(batch(2))
    assert (outcome.scores.tolist(), outcome.engine, outcome.reason) == ([0.0, 0.5], "ort", "ort:hung")
    assert engine.calls == [[0, 1], [0, 1]], "whole: nothing is known against its rows"


async def test_when_no_engine_is_left_the_worker_ends_and_good_rows_are_no_dead_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.attempt.HANG_FLOOR_S", 0.01)
    engine = Scripted("ort", half, prior=(1e-4, 0.0))
    engine.go.clear()
    with pytest.RaisesGroup(pytest.RaisesExc(NoEngineLeft, match="ort: the batch did not come back")):
        await Fixture(engine).score(batch(2))


async def test_a_lost_device_with_nobody_to_answer_in_its_place_ends_the_worker() -> None:
    def lost(xs: list[int]) -> list[float]:
        raise DeviceLost("error 700")

    with pytest.RaisesGroup(pytest.RaisesExc(NoEngineLeft, match="trt: error 700")):
        await Fixture(Scripted("trt", lost)).score(batch(4))
