"""Lanes on shared threads, with scripted sessions: order, isolation, hangs, the threads' life."""

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from engines.base import Features, Scores
from engines.errors import RunError
from engines.hub import Hub, Hubs
from engines.runner import serve
from tests.engines.test_runner import PATIENCE, Answers, Doubling, batch


class Polled(Doubling):
    """Doubling (2 x; refuses negative and large rows) that is ready unless `hung`; knows the thread that serves it."""

    def __init__(self) -> None:
        super().__init__(depth=2)
        self.hung = threading.Event()
        self.inside: list[str] = []

    def ready(self) -> bool:
        return bool(self.queued) and not self.hung.is_set()

    @contextlib.contextmanager
    def on_thread(self) -> Iterator[None]:
        self.inside.append("enter")
        yield
        self.inside.append("leave")


class Stuck(Polled):
    """Submit blocks until `resume`."""

    def __init__(self) -> None:
        super().__init__()
        self.resume = threading.Event()
        self.entered = threading.Event()

    def submit(self, features: Features) -> None:
        self.entered.set()
        assert self.resume.wait(PATIENCE)
        super().submit(features)


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_lanes_of_one_hub_share_a_thread_and_keep_their_batches_apart() -> None:
    hub, sessions, answers = Hub("shared"), [Polled() for _ in range(4)], Answers()
    lanes = [hub.open(session, str(index)) for index, session in enumerate(sessions)]
    for step in range(20):
        for index, lane in enumerate(lanes):
            for turn in range(lane.depth):
                lane.submit(batch(index * 10 + turn), answers.done((index, turn)))
        for _ in range(8):
            label, scores, error = answers.next()
            assert isinstance(label, tuple) and error is None and scores is not None, step
            assert scores.tolist() == [2.0 * (label[0] * 10 + label[1])]
    assert len(threads("shared")) == 1
    assert all(session.submit_threads == session.collect_threads == {"shared"} for session in sessions)
    assert all(lane.close(PATIENCE) for lane in lanes)
    assert all(session.closed_on == ["shared"] for session in sessions)


def test_the_thread_ends_with_the_last_lane_and_starts_with_the_next_one() -> None:
    hub, answers = Hub("ending"), Answers()
    for _ in range(3):
        session = Polled()
        lane = hub.open(session, "a")
        [thread] = threads("ending")
        lane.submit(batch(1), answers.done(1))
        assert answers.next()[2] is None
        assert lane.close(PATIENCE)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert session.inside == ["enter", "leave"]


def test_a_lane_opened_in_the_moment_in_which_the_last_one_ends_has_a_thread_of_its_own() -> None:
    hub, answers, opened = Hub("handover"), Answers(), []

    class Opening(threading.Event):
        def set(self) -> None:
            opened.append(hub.open(Polled(), "second"))
            super().set()

    lane = hub.open(Polled(), "first")
    lane.ended = Opening()
    [old] = threads("handover")
    assert lane.close(PATIENCE)
    old.join(PATIENCE)
    assert not old.is_alive(), "two threads serve the same lanes"
    opened[0].submit(batch(3), answers.done("second"))
    label, scores, error = answers.next()
    assert (label, error) == ("second", None) and scores is not None and scores.tolist() == [6.0]
    assert opened[0].close(PATIENCE)


def test_an_error_belongs_to_its_batch() -> None:
    hub, answers = Hub("errors"), Answers()
    lane = hub.open(Polled(), "a")
    for value, message in ((-1, "negative"), (101, "large")):
        lane.submit(batch(value), answers.done("bad"))
        lane.submit(batch(3), answers.done("good"))
        found = {label: (scores, error) for label, scores, error in (answers.next(), answers.next())}
        scores, error = found["bad"]
        assert scores is None and isinstance(error, RunError) and str(error) == message
        scores, error = found["good"]
        assert error is None and scores is not None and scores.tolist() == [6.0]
    assert lane.close(PATIENCE)


def test_a_hung_lane_does_not_hold_up_the_others_and_is_closed_when_the_hang_ends() -> None:
    hub, hung, healthy, answers = Hub("hung"), Polled(), Polled(), Answers()
    lane, other = hub.open(hung, "hung"), hub.open(healthy, "healthy")
    hung.hung.set()
    lane.submit(batch(1), answers.done("lost"))
    other.submit(batch(2), answers.done("scored"))
    assert answers.next()[0] == "scored"
    lane.retire()
    label, scores, error = answers.next()
    assert (label, scores) == ("lost", None) and isinstance(error, RunError) and "retired" in str(error)
    with pytest.raises(RuntimeError, match="after close or retire"):
        lane.submit(batch(1), answers.done("late"))
    other.submit(batch(3), answers.done("scored"))
    assert answers.next()[0] == "scored"
    assert hung.closed_on == [] and not lane.close(0.0)
    hung.hung.clear()
    assert lane.close(PATIENCE)
    assert hung.closed_on == ["hung"]
    assert answers.queue.empty()
    assert other.close(PATIENCE)


def test_close_finishes_what_was_submitted_and_is_idempotent() -> None:
    hub, answers = Hub("closing"), Answers()
    lane = hub.open(Polled(), "a")
    lane.submit(batch(1), answers.done(1))
    lane.submit(batch(2), answers.done(2))
    assert lane.close(PATIENCE) and lane.close(PATIENCE)
    assert [answers.next()[2], answers.next()[2]] == [None, None]
    assert answers.queue.empty()


def test_more_than_depth_is_refused() -> None:
    hub, session, answers = Hub("depth"), Polled(), Answers()
    session.hung.set()
    lane = hub.open(session, "a")
    lane.submit(batch(1), answers.done(1))
    lane.submit(batch(2), answers.done(2))
    with pytest.raises(RuntimeError, match="2 batches are outstanding"):
        lane.submit(batch(3), answers.done(3))
    session.hung.clear()
    assert [answers.next()[0], answers.next()[0]] == [1, 2]
    assert lane.close(PATIENCE)


def test_a_callback_that_raises_is_logged_and_the_lane_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    hub, answers = Hub("callback"), Answers()
    lane = hub.open(Polled(), "a")

    def explode(scores: Scores | None, error: BaseException | None) -> None:
        raise RuntimeError("loop is closed")

    lane.submit(batch(1), explode)
    lane.submit(batch(2), answers.done(2))
    assert answers.next()[0] == 2
    assert lane.close(PATIENCE)
    assert "done callback raised" in caplog.text


def test_lanes_spread_over_hubs_and_a_hub_whose_thread_is_lost_takes_no_more() -> None:
    hubs, answers, stuck = Hubs("spread", 2), Answers(), Stuck()
    lanes = [hubs.open(session, "lane") for session in (stuck, Polled(), Polled(), Polled())]
    assert [len(threads("spread-0")), len(threads("spread-1"))] == [1, 1]
    lanes[0].submit(batch(1), answers.done("stuck"))
    assert stuck.entered.wait(PATIENCE)
    lanes[0].retire()
    assert isinstance(answers.next()[2], RunError)
    fresh = [hubs.open(Polled(), "fresh") for _ in range(2)]  # both go to the hub that is empty: the new one
    assert len(threads("spread-0")) == 2
    for lane in fresh:
        lane.submit(batch(5), answers.done("fresh"))
        label, scores, _ = answers.next()
        assert label == "fresh" and scores is not None and scores.tolist() == [10.0]
    stuck.resume.set()
    for lane in (*lanes, *fresh):
        assert lane.close(PATIENCE)


def test_a_session_says_whether_it_shares_threads() -> None:
    hub, answers = Hub("offered"), Answers()

    class Offering(Polled):
        def serve(self, name: str) -> object:
            return hub.open(self, name)

    offered, plain = Offering(), Doubling(1)
    for session, thread in ((offered, "offered"), (plain, "own")):
        serving = serve(session, name="own")
        serving.submit({"x": np.ones(1, np.float32)}, answers.done(thread))
        assert answers.next()[2] is None
        assert session.submit_threads == {thread}
        assert serving.close(PATIENCE)
