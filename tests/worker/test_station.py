import asyncio
import threading

import numpy as np
import pytest

from engines.base import Features, Scores
from engines.errors import LoadError, RunError
from schemas.spec import TensorSpec
from worker.clock import SystemClock
from worker.outcome import Absent
from worker.station import MOST_HUNG, Station, open_session


class StuckSession:
    """Hangs in `collect` until let go; the real engines do not hang on demand."""

    depth = 1

    def __init__(self, go: threading.Event) -> None:
        self._go = go
        self._features: Features = {}

    def submit(self, features: Features) -> None:
        self._features = features

    def collect(self) -> Scores:
        self._go.wait(30)
        return np.asarray(self._features["x"][:, 0], dtype=np.float32)

    def close(self) -> None:
        pass


class StuckEngine:
    name, version, max_batch, inline = "stuck", "3", 8, False

    def __init__(self, *going: bool) -> None:
        """One session per argument: whether it answers at once."""
        self.gates = [threading.Event() for _ in going]
        for gate, goes in zip(self.gates, going, strict=True):
            if goes:
                gate.set()
        self.opened = 0

    def open_session(self) -> StuckSession:
        if self.opened == len(self.gates):
            raise LoadError("no more sessions")
        self.opened += 1
        return StuckSession(self.gates[self.opened - 1])

    def close(self) -> None:
        pass


X = {"x": np.array([[1.0], [2.0]], dtype=np.float32)}


async def opened(engine: StuckEngine) -> Station:
    """A station whose first session answers while it is measured, and from then on as its gate says."""
    going = engine.gates[0].is_set()
    engine.gates[0].set()
    station = Station("t", open_session, SystemClock())
    assert not station.warm
    async with asyncio.timeout(10):
        await station.open(engine, [TensorSpec("x", "float32", (1,))], engine.max_batch)
    if not going:
        engine.gates[0].clear()
    return station


async def until_reopened(station: Station) -> None:
    assert station._opening is not None
    async with asyncio.timeout(10):
        await station._opening


async def test_it_scores_on_its_own_thread() -> None:
    station = await opened(StuckEngine(True))
    assert (await station.run(X)).tolist() == [1.0, 2.0]
    assert (station.warm, station.inline, station.depth) == (True, False, 1)
    assert station.service_time.count == 9, "three sizes were measured three times"
    await station.close(5)


async def test_a_light_engine_runs_on_the_loop_itself() -> None:
    engine = StuckEngine(True)
    engine.inline = True
    station = await opened(engine)
    assert station.inline
    before = threading.active_count()
    assert (await station.run(X)).tolist() == [1.0, 2.0]
    assert threading.active_count() == before
    await station.close(5)


async def test_a_cold_station_refuses_at_once() -> None:
    with pytest.raises(RunError, match="no session"):
        await Station("t", open_session, SystemClock()).run(X)


async def test_callers_beyond_the_depth_wait_their_turn() -> None:
    engine = StuckEngine(False)
    station = await opened(engine)
    runs = [asyncio.create_task(station.run({"x": np.full((1, 1), i, np.float32)})) for i in range(4)]
    await asyncio.sleep(0)
    engine.gates[0].set()
    async with asyncio.timeout(10):
        assert [(await run).tolist() for run in runs] == [[0.0], [1.0], [2.0], [3.0]]
    await station.close(5)


async def test_after_a_hang_a_new_session_takes_over_and_the_old_ones_late_answer_is_dropped() -> None:
    engine = StuckEngine(False, True)
    station = await opened(engine)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await station.run(X)
    await station.replace()
    await until_reopened(station)
    assert (await station.run(X)).tolist() == [1.0, 2.0]
    engine.gates[0].set()
    assert (await station.run(X)).tolist() == [1.0, 2.0]
    await station.close(5)


async def test_waiting_callers_of_a_retired_session_get_an_error_at_once() -> None:
    engine = StuckEngine(False, True)
    station = await opened(engine)
    run = asyncio.create_task(station.run(X))
    await asyncio.sleep(0)
    await station.replace()
    with pytest.raises(RunError):
        async with asyncio.timeout(10):
            await run
    await until_reopened(station)
    await station.close(5)
    engine.gates[0].set()


async def test_all_who_wait_at_a_retired_session_are_told_that_nobody_looked_at_their_batch() -> None:
    """Anything else would end the lane, and the worker with it, when a session hangs under load."""
    engine = StuckEngine(False, True)
    station = await opened(engine)
    runs = [asyncio.create_task(station.run(X)) for _ in range(3)]
    await asyncio.sleep(0)
    await station.replace()
    async with asyncio.timeout(10):
        errors = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(error) for error in errors] == [Absent] * 3
    assert await station.back(), "a new session took over"
    assert (await station.run(X)).tolist() == [1.0, 2.0]
    await station.close(5)
    engine.gates[0].set()


async def test_hung_sessions_are_bounded() -> None:
    engine = StuckEngine(*[False] * (MOST_HUNG + 1))
    station = await opened(engine)
    for hang in range(MOST_HUNG):
        await station.replace()
        if hang < MOST_HUNG - 1:
            await until_reopened(station)
        assert (station.gone is None) is (hang < MOST_HUNG - 1)
    assert engine.opened == MOST_HUNG
    assert not await station.back()
    assert station.gone == f"{MOST_HUNG} sessions hung and were left behind"
    with pytest.raises(Absent, match=station.gone):
        await station.run(X)
    for gate in engine.gates:
        gate.set()
    await station.close(5)


async def test_without_a_new_session_runs_fail_and_do_not_wait() -> None:
    engine = StuckEngine(False)
    station = await opened(engine)
    await station.replace()
    await until_reopened(station)
    with pytest.raises(RunError):
        await station.run(X)
    engine.gates[0].set()
    await station.close(5)


async def test_whatever_keeps_a_new_session_from_opening_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StuckEngine(False)
    station = await opened(engine)

    def open_another() -> StuckSession:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(engine, "open_session", open_another)
    await station.replace()
    assert not await station.back()
    why = """no new session after a hang: RuntimeError("can't start new thread")"""
    assert station.gone == why
    with pytest.raises(Absent, match="can't start new thread"):
        await station.run(X)
    (record,) = [record for record in caplog.records if record.name == "scorelane.station"]
    assert record.message == f"t: {why}"
    await station.close(5)
    engine.gates[0].set()
