"""A scene whose every number follows from its parts by hand: one event each 10 ms, one lane, no jitter."""

import msgspec
import pytest

from tests.worker.replay.scenes import config, scene
from worker.config import KafkaConfig
from worker.replay.broker import Costs
from worker.replay.device import Pace
from worker.replay.pipeline import Played, play
from worker.replay.synthetic import Traffic

FREE = Costs(fetch_s=0.002, poll_s=0.0, record_s=0.0, publish_s=0.0, ack_s=0.003)
PRIMARY = Pace(fixed_s=0.004, row_s=0.001)
LIGHT = Pace(fixed_s=0.0005, row_s=0.0)
EVEN = Traffic(rate=100, seconds=3.0, poisson=False, partitions=1)
"""Events at 0 ms, 10 ms, ..."""


def even(*faults: str, traffic: Traffic = EVEN) -> Played:
    return play(scene(*faults, traffic=traffic, primary=PRIMARY, light=LIGHT, costs=FREE, whole=config(lanes=1)))


def moves(result: Played) -> list[tuple[float, str, str]]:
    return [(round(move.at_s, 4), move.after, move.cause) for move in result.report.breaker]


def test_latency_is_half_a_fetch_and_the_service_time_and_the_acknowledgement() -> None:
    report = even().report
    (first, *_) = report.classes
    assert (report.events, first.events, first.primary) == (300, 300, 300)
    assert (first.p50_ms, first.p99_ms, first.max_ms) == pytest.approx((9.0, 9.0, 9.0))
    assert report.batches == {"idle": 300}
    assert (report.seconds, report.sessions) == (pytest.approx(2.999), 2)


def test_errors_open_after_three_batches_and_each_probe_that_fails_doubles_the_open_time() -> None:
    """Batches begin at 1.001, 1.011, ... and end 5 ms later. The first open time is 250 ms, the longest 1 s."""
    result = even("error:primary:1s-1.9s")
    assert moves(result) == [
        (1.026, "open", "errors"),  # 1.021 is the third batch
        (1.281, "half_open", "open_time_over"),  # the first batch after 1.276
        (1.286, "open", "errors"),
        (1.791, "half_open", "open_time_over"),  # after 1.786
        (1.796, "open", "errors"),
        (2.801, "half_open", "open_time_over"),  # after 2.796
        (2.826, "closed", "probes_passed"),  # three probes: 2.801, 2.811, 2.821
    ]
    (first, *_) = result.report.classes
    # Answered by the light engine: the three failed batches, all of 1.03..2.79, and the three events of the probes.
    assert first.fallback == {"ort:error": 3, "ort:breaker:half_open": 5, "ort:breaker:open": 175}
    assert first.primary == 300 - 183
    assert (first.missed, first.lost) == (0, 0)
    assert first.max_ms == pytest.approx(9.5)


def test_a_probe_that_hangs_is_left_behind_and_the_primary_is_back_with_another_session() -> None:
    """A batch is taken for hung after 2 s; the second open time is 500 ms."""
    traffic = Traffic(rate=100, seconds=5.0, poisson=False, partitions=1)
    result = even("error:primary:1s-1.2s", "hang:primary:1.25s-1.5s", traffic=traffic)
    assert moves(result) == [
        (1.026, "open", "errors"),
        (1.281, "half_open", "open_time_over"),  # the probe that hangs, and the only one: no other is sent behind it
        (3.281, "open", "errors"),
        (3.781, "half_open", "open_time_over"),  # a batch begins just then
        (3.806, "closed", "probes_passed"),  # three probes: 3.781, 3.791, 3.801
    ]
    (first, *_) = result.report.classes
    assert result.report.sessions == 3
    assert (first.events - first.primary, first.missed, first.lost) == (281, 0, 0), "the events of 1.00 to 3.80"


def test_a_lost_device_is_noticed_by_the_first_batch() -> None:
    result = even("lost:primary:1s")
    assert moves(result) == [(1.006, "open", "device_lost")]
    (first, *_) = result.report.classes
    assert first.fallback == {"ort:device_lost": 1, "ort:breaker:device_lost": 199}


def test_a_paused_worker_answers_late_what_came_meanwhile_and_nothing_else() -> None:
    """Events of 1.00 to 1.29 are taken in at 1.3. Those until 1.25 are late then; the later ones are not, since those
    without the time for the primary, which the late ones keep busy, go to the light engine."""
    result = even("pause:1s-1.3s")
    (first, *_) = result.report.classes
    assert (first.missed, first.lost) == (26, 0)
    late = result.tally.answered_at > result.script.due
    assert result.script.arrives[late].tolist() == pytest.approx([1 + 0.01 * i for i in range(26)])


DENSE = Traffic(rate=1000, seconds=0.5, poisson=False, partitions=1)
"""Events at 0 ms, 1 ms, ...: event i is there at i + 1. A fetch takes 2 ms, a batch 1 ms, the acknowledgement 3 ms."""


def dense(linger_ms: int) -> Played:
    kafka = KafkaConfig(bootstrap_servers="none:1", fetch_linger_ms=linger_ms)
    whole = msgspec.structs.replace(config(lanes=1), kafka=kafka)
    return play(scene(traffic=DENSE, primary=Pace(fixed_s=0.001, row_s=0.0), light=LIGHT, costs=FREE, whole=whole))


def test_an_answer_at_once_brings_what_came_during_the_fetch() -> None:
    """Polls at 1 (event 0), 3 (1 and 2), 5 (3 and 4), ..., 499 (497 and 498), 501 (499): 251. A score is acknowledged
    4 ms after its event's poll: odd events wait 6 ms, even ones 5 ms, half of them each."""
    played = dense(linger_ms=0)
    (first, *_) = played.report.classes
    waits_ms = (played.tally.answered_at - played.script.arrives) * 1000
    assert waits_ms.tolist() == pytest.approx([5.0, 6.0] * 250)
    assert (first.primary, played.report.batches) == (500, {"idle": 251})


def test_while_records_flow_an_answer_brings_what_came_until_the_linger_was_over() -> None:
    """Polls at 1 (event 0: alone, the next fetch is answered at once), 3 (1 and 2), 10 (2 ms of the fetch and 5 ms of
    the linger later: 3 to 9), 17 (10 to 16), ..., 500 (493 to 499): 73. Of seven the oldest waits 7 + 4 ms, the
    youngest 5 ms."""
    played = dense(linger_ms=5)
    (first, *_) = played.report.classes
    waits_ms = (played.tally.answered_at - played.script.arrives) * 1000
    assert waits_ms.tolist() == pytest.approx([5.0, 6.0, 5.0] + [11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0] * 71)
    assert (first.primary, played.report.batches) == (500, {"idle": 73})
