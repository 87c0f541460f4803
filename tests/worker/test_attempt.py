"""How long engines are waited for, what is left behind, and what breakers and service times are told of it."""

import asyncio

import pytest

from tests.worker.scripted import Fixture, Scripted, batch, double, fails, half
from worker.breaker import Cause, State
from worker.route import RoutePolicy


async def test_the_service_time_is_learned_from_the_clock() -> None:
    engine = Scripted("ort", half)
    fixture = Fixture(engine)

    def slow(xs: list[int]) -> list[float]:
        fixture.clock.now += 0.25
        return half(xs)

    engine.answer = slow
    (outcome,) = await fixture.score(batch(4))
    assert outcome.service_s == 0.25
    assert engine.service_time.expected(4) == pytest.approx(0.25)


async def test_a_hung_session_is_left_behind_and_the_batch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.attempt.HANG_FLOOR_S", 0.0)
    hung = Scripted("ort", half, prior=(1e-4, 0.0))
    hung.go.clear()
    (outcome,) = await Fixture(hung, Scripted("light", double)).score(batch(2))
    assert (outcome.engine, outcome.reason) == ("light", "ort:hung")
    assert hung.left_behind == 1


async def test_an_overdue_primary_is_not_waited_for_and_still_teaches_its_speed() -> None:
    slow = Scripted("ort", half)
    slow.go.clear()
    fixture = Fixture(slow, Scripted("light", double))
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        # The deadline is 20 ms of real time away: the wait itself is on the loop's clock.
        (started,) = fixture.dispatcher.start(batch(2, deadline=0.020), tasks)
        (outcome,) = await started.answer
        assert (outcome.engine, outcome.reason) == ("light", "ort:overdue")
        fixture.clock.now = 0.5
        slow.go.set()
    assert slow.left_behind == 0
    assert slow.service_time.expected(2) == pytest.approx(0.5)


async def test_an_engine_is_not_hung_when_it_was_this_process_that_stood_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped and continued, a container thawed, a laptop opened: time has passed and nobody has run."""
    monkeypatch.setattr("worker.attempt.HANG_FLOOR_S", 0.5)
    engine = Scripted("ort", half, prior=(1e-4, 0.0))
    engine.go.clear()
    fixture = Fixture(engine)

    def monotonic() -> float:
        if not engine.calls:
            return 0.0
        engine.go.set()  # as soon as the process runs again, the engine does too
        return 60.0

    fixture.clock.monotonic = monotonic  # type: ignore[method-assign]
    (outcome,) = await fixture.score(batch(2))
    assert (outcome.engine, outcome.reason, engine.left_behind) == ("ort", None, 0)


async def overdue(fixture: Fixture, primary: Scripted) -> list[str]:
    """Batches until one is not overdue: each run ends after the light engine has answered. The reasons."""
    reasons: list[str] = []
    while len(reasons) < 5 and reasons[-1:] != ["ort:breaker:open"]:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            primary.go.clear()
            # The deadline is 20 ms of real time away: the wait itself is on the loop's clock.
            (started,) = fixture.dispatcher.start(batch(1, deadline=fixture.clock.now + 0.020), tasks)
            (outcome,) = await started.answer
            reasons.append(str(outcome.reason))
            primary.go.set()
    return reasons


async def test_overdue_batches_in_a_row_open_the_breaker_though_their_runs_end_well() -> None:
    primary = Scripted("ort", half)
    fixture = Fixture(primary, Scripted("light", double))
    assert await overdue(fixture, primary) == ["ort:overdue"] * 3 + ["ort:breaker:open"]
    assert [(move.after, move.cause) for _, move in fixture.moves] == [(State.OPEN, Cause.ERRORS)]
    assert (len(primary.calls), primary.service_time.count, primary.left_behind) == (3, 3, 0)


async def test_a_batch_that_is_overdue_and_then_fails_is_one_failure() -> None:
    primary = Scripted("ort", fails)
    fixture = Fixture(primary, Scripted("light", double))
    assert await overdue(fixture, primary) == ["ort:overdue"] * 3 + ["ort:breaker:open"]


async def half_open(primary: Scripted) -> Fixture:
    """A dispatcher whose primary has failed three times and may be probed."""
    fixture = Fixture(primary, Scripted("light", double))
    for _ in range(3):
        await fixture.score(batch(1))
    fixture.clock.now = 1.0
    return fixture


async def test_a_probe_that_hangs_opens_the_breaker_and_its_session_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.attempt.HANG_FLOOR_S", 0.01)
    primary = Scripted("ort", fails, prior=(1e-4, 0.0))
    fixture = await half_open(primary)
    primary.go.clear()
    (outcome,) = await fixture.score(batch(1))
    assert (outcome.engine, outcome.reason) == ("light", "ort:breaker:half_open")
    assert [move.after for _, move in fixture.moves] == [State.OPEN, State.HALF_OPEN, State.OPEN]
    assert primary.left_behind == 1


async def test_an_engine_has_one_shadow_at_a_time() -> None:
    """A second one would wait behind the first, and be taken for slow."""
    primary = Scripted("ort", fails)
    fixture = await half_open(primary)
    primary.go.clear()
    primary.answer = half
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for _ in range(3):
            (started,) = fixture.dispatcher.start(batch(1), tasks)
            assert [outcome.engine for outcome in await started.answer] == ["light"]
        assert len(primary.calls) == 3 + 1
        primary.go.set()
    for _ in range(2):
        await fixture.score(batch(1))
    assert [move.after for _, move in fixture.moves] == [State.OPEN, State.HALF_OPEN, State.CLOSED]
    assert len(primary.calls) == 3 + 3


async def test_a_shadow_of_an_engine_that_is_too_slow_is_left_behind_when_it_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.attempt.HANG_FLOOR_S", 0.01)
    monkeypatch.setattr("worker.attempt.HANG_FACTOR", 0.001)
    primary = Scripted("ort", half, prior=(10.0, 0.0))
    primary.go.clear()
    fixture = Fixture(primary, Scripted("light", double), policy=RoutePolicy())
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for now in (1.0, 2.0, 3.0):
            fixture.clock.now = now
            (started,) = fixture.dispatcher.start(batch(1, deadline=now + 1.0), tasks)
            assert [outcome.reason for outcome in await started.answer] == ["ort:budget"]
        assert len(primary.calls) == 1
    assert primary.left_behind == 1
