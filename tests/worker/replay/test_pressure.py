"""What the worker promises under pressure, on the whole pipeline in simulated time: every outcome is exact."""

from functools import cache

import numpy as np
import pytest

from tests.worker.replay.scenes import MIX, config, scene
from worker.publisher import Messages
from worker.replay import pipeline
from worker.replay.broker import Acknowledged, MemoryPublisher
from worker.replay.device import Pace
from worker.replay.pipeline import Played, play
from worker.replay.report import ClassReport
from worker.replay.synthetic import Traffic

BURST = Traffic(rate=300, seconds=4, bursts=[(1, 2.5, 10)], classes=MIX)
"""300 events a second, ten times as many in [1 s, 2.5 s)."""
STOP = 2.5


@cache
def played(*faults: str, lanes: int = 1) -> Played:
    return play(scene(*faults, traffic=BURST, whole=config(lanes=lanes)))


def of(result: Played, name: str) -> ClassReport:
    return next(one for one in result.report.classes if one.name == name)


def moves(result: Played, lane: str = "tips-0") -> list[str]:
    return [f"{m.after}: {m.cause}" for m in result.report.breaker if m.lane == lane]


def moved_at(result: Played, after: str, lane: str = "tips-0") -> list[float]:
    return [m.at_s for m in result.report.breaker if m.after == after and m.lane == lane]


def by_primary(result: Played) -> np.ndarray:
    """Whether the primary answered each event."""
    return np.array([result.tally.fates[fate][1] is None for fate in result.tally.fate])


def assert_nothing_lost(result: Played) -> None:
    report = result.report
    assert sum(one.lost for one in report.classes) == report.duplicates == report.uncommitted == 0
    assert sum(one.events for one in report.classes) == report.events


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_burst_on_a_primary_that_turns_20_times_slower_costs_no_deadline(lanes: int) -> None:
    result = played("slow:primary:20:1s-2.5s", lanes=lanes)
    assert_nothing_lost(result)
    assert of(result, "L1").in_time >= 0.999
    assert all(one.in_time >= 0.999 for one in result.report.classes)
    # The first batch that is too slow begins at 1 s and would be late at 1.05 s.
    assert all(1.05 < moved_at(result, "open", f"tips-{lane}")[0] <= 1.25 for lane in range(lanes))
    assert all(STOP < moved_at(result, "closed", f"tips-{lane}")[-1] <= STOP + 2 for lane in range(lanes))
    late = result.script.arrives > STOP + 2
    assert by_primary(result)[late].all()
    assert not by_primary(result)[(result.script.arrives > 1.3) & (result.script.arrives < STOP - 0.1)].any()


def test_a_primary_that_hangs_is_left_behind_and_another_session_takes_over() -> None:
    result = played("hang:primary:1s-2.5s")
    assert_nothing_lost(result)
    assert sum(one.missed for one in result.report.classes) == 0
    assert result.report.sessions == played().report.sessions + 1
    assert moved_at(result, "open")[0] <= 1.25
    assert moved_at(result, "closed")[-1] <= STOP + 2


def test_an_error_storm_costs_three_batches() -> None:
    result = played("error:primary:1s-2.5s")
    assert_nothing_lost(result)
    assert sum(one.missed for one in result.report.classes) == 0
    assert moves(result)[:2] == ["open: errors", "half_open: open_time_over"]
    assert moved_at(result, "open")[0] <= 1.02
    assert set(of(result, "L1").fallback) == {"ort:error", "ort:breaker:open", "ort:breaker:half_open"}
    assert moved_at(result, "closed")[-1] <= STOP + 2


def test_a_lost_device_is_never_used_again() -> None:
    result = played("lost:primary:1s")
    assert_nothing_lost(result)
    assert sum(one.missed for one in result.report.classes) == 0
    assert moves(result) == ["open: device_lost"]
    assert not by_primary(result)[result.script.arrives > 1].any()
    assert result.report.alarms[0].cause == "device_lost"


@pytest.mark.parametrize("by", ["+30s", "-30s"])
def test_a_clock_that_jumps_costs_no_deadline(by: str) -> None:
    """The producers' clocks did not jump. Ahead of them all events look late already; behind, none does."""
    result = played(f"jump:{by}:1s")
    assert_nothing_lost(result)
    assert sum(one.missed for one in result.report.classes) == 0
    assert moves(result) == []
    assert by_primary(result).all()


def test_a_pause_of_the_whole_worker_loses_nothing_and_ends_with_the_pause() -> None:
    result = played("pause:1s-1.3s")
    assert_nothing_lost(result)
    late = result.tally.answered_at > result.script.due
    paused = (result.script.arrives > 0.95) & (result.script.arrives < 1.4)
    assert late.any()
    assert not late[~paused].any()


def test_without_faults_the_primary_holds_the_burst() -> None:
    result = played()
    assert_nothing_lost(result)
    assert by_primary(result).all()
    assert sum(one.missed for one in result.report.classes) == 0
    assert (result.report.breaker, result.report.alarms) == ([], [])


def test_in_overload_the_lowest_class_sheds_first_and_the_highest_is_unharmed() -> None:
    """Half as much again as the only engine can do, late events being skipped."""
    pace = Pace(fixed_s=2e-3, row_s=125e-6)
    traffic = Traffic(rate=10_000, seconds=1.0, classes=MIX)
    whole = config(max_batch=64, fallback=(), late="skip")
    result = play(scene(traffic=traffic, primary=pace, whole=whole))
    assert_nothing_lost(result)
    in_time = [one.in_time for one in result.report.classes]
    assert in_time[0] >= 0.999
    assert in_time == sorted(in_time, reverse=True)
    assert in_time[3] > 0.1, "nobody starves"
    # No work for nothing: what is scored is scored in time, and batches stay full.
    scored = sum(one.primary for one in result.report.classes)
    missed = sum(one.missed - sum(one.skipped.values()) for one in result.report.classes)
    assert missed <= 0.01 * scored
    assert result.report.rows_a_batch > 60


def test_in_overload_the_fallback_takes_what_the_primary_cannot() -> None:
    traffic = Traffic(rate=10_000, seconds=1.0, classes=MIX)
    pace = Pace(fixed_s=2e-3, row_s=125e-6)
    result = play(scene(traffic=traffic, primary=pace, whole=config(max_batch=64)))
    assert_nothing_lost(result)
    assert all(one.in_time >= 0.999 for one in result.report.classes)
    assert moves(result) == []


def test_the_same_scene_has_the_same_outcome_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[object, ...]] = []

    class Recorder(MemoryPublisher):
        async def send(self, topic: str, partition: int, messages: Messages, timestamp_ms: int) -> Acknowledged:
            sent.append((topic, partition, tuple(messages.values), timestamp_ms))
            return await super().send(topic, partition, messages, timestamp_ms)

    monkeypatch.setattr(pipeline, "MemoryPublisher", Recorder)
    first, again = (play(scene("slow:primary:20:1s-2.5s", traffic=BURST, whole=config(lanes=2))) for _ in range(2))
    assert again.report.encode() == first.report.encode()
    assert again.tally.answered_at.tolist() == first.tally.answered_at.tolist()
    half = len(sent) // 2
    assert sent[:half] == sent[half:] and half > 0
