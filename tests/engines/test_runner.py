"""The runner against scripted sessions: order, depth, one answer a batch, hangs."""

import threading
from queue import Queue

import numpy as np
import pytest

from engines.base import Features, Scores
from engines.errors import DeviceLost, RunError
from engines.runner import Done, Runner

PATIENCE = 10.0
"""Seconds a test waits for something that must happen; only reached when it does not."""


class Doubling:
    """A session: score = 2 x, refuses negative rows at submit and rows above 100 at collect."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.queued: list[Features] = []
        self.submit_threads: set[str] = set()
        self.collect_threads: set[str] = set()
        self.closed_on: list[str] = []

    def submit(self, features: Features) -> None:
        self.submit_threads.add(threading.current_thread().name)
        if features["x"].min() < 0:
            raise RunError("negative")
        assert len(self.queued) < self.depth
        self.queued.append(features)

    def collect(self) -> Scores:
        self.collect_threads.add(threading.current_thread().name)
        features = self.queued.pop(0)
        if features["x"].max() > 100:
            raise RunError("large")
        return (features["x"] * 2).astype(np.float32)

    def close(self) -> None:
        self.closed_on.append(threading.current_thread().name)


class Hanging(Doubling):
    """Collect blocks until `resume` is set, then answers."""

    def __init__(self, depth: int) -> None:
        super().__init__(depth)
        self.resume = threading.Event()
        self.hung = threading.Event()

    def collect(self) -> Scores:
        self.hung.set()
        assert self.resume.wait(PATIENCE)
        return super().collect()


class Answers:
    """Collects what `done` is called with, by batch label."""

    def __init__(self) -> None:
        self.queue: Queue[tuple[object, Scores | None, BaseException | None]] = Queue()

    def done(self, label: object) -> Done:
        return lambda scores, error: self.queue.put((label, scores, error))

    def next(self) -> tuple[object, Scores | None, BaseException | None]:
        return self.queue.get(timeout=PATIENCE)


def batch(*values: float) -> Features:
    return {"x": np.array(values, np.float32)}


@pytest.mark.parametrize("depth", [1, 2])
def test_batches_are_answered_in_order_with_their_own_rows(depth: int) -> None:
    runner, answers = Runner(Doubling(depth), name="r"), Answers()
    for first in range(0, 50, depth):
        for label in range(first, first + depth):
            runner.submit(batch(label, label + 0.5), answers.done(label))
        for label in range(first, first + depth):
            got, scores, error = answers.next()
            assert (got, error) == (label, None)
            assert scores is not None and scores.tolist() == [2.0 * label, 2.0 * label + 1]
    assert answers.queue.empty()
    assert runner.close(PATIENCE)


@pytest.mark.parametrize("depth", [1, 2])
def test_the_session_is_used_and_closed_on_the_runners_thread(depth: int) -> None:
    session, answers = Doubling(depth), Answers()
    runner = Runner(session, name="r")
    for label in range(3):
        runner.submit(batch(label), answers.done(label))
        answers.next()
    assert runner.close(PATIENCE)
    assert (session.submit_threads, session.collect_threads, session.closed_on) == ({"r"}, {"r"}, ["r"])


@pytest.mark.parametrize("depth", [1, 2])
def test_an_error_belongs_to_its_batch_and_the_next_one_is_scored(depth: int) -> None:
    runner, answers = Runner(Doubling(depth), name="r"), Answers()
    for values, message in ((batch(-1), "negative"), (batch(101), "large")):
        runner.submit(values, answers.done("bad"))
        label, scores, error = answers.next()
        assert (label, scores) == ("bad", None)
        assert isinstance(error, RunError) and str(error) == message
        runner.submit(batch(3), answers.done("good"))
        label, scores, error = answers.next()
        assert label == "good" and error is None and scores is not None and scores.tolist() == [6.0]
    assert runner.close(PATIENCE)


def test_more_than_depth_outstanding_is_refused_and_accepted_ones_are_unharmed() -> None:
    session, answers = Hanging(2), Answers()
    runner = Runner(session, name="r")
    runner.submit(batch(1), answers.done(1))
    runner.submit(batch(2), answers.done(2))
    with pytest.raises(RuntimeError, match="2 batches are outstanding"):
        runner.submit(batch(3), answers.done(3))
    session.resume.set()
    assert [answers.next()[0], answers.next()[0]] == [1, 2]
    assert runner.close(PATIENCE)
    assert answers.queue.empty()


def test_retire_answers_what_hangs_and_drops_the_late_result_and_closes_the_session_when_the_hang_ends() -> None:
    session, answers = Hanging(2), Answers()
    runner = Runner(session, name="r")
    runner.submit(batch(1), answers.done(1))
    runner.submit(batch(2), answers.done(2))
    assert session.hung.wait(PATIENCE)
    runner.retire()  # returns although collect hangs
    for expected in (1, 2):
        label, scores, error = answers.next()
        assert (label, scores) == (expected, None)
        assert isinstance(error, RunError) and "retired" in str(error)
    with pytest.raises(RuntimeError, match="after close or retire"):
        runner.submit(batch(3), answers.done(3))
    assert session.closed_on == []  # the device may still write to its buffers
    session.resume.set()
    assert runner.close(PATIENCE)
    assert session.closed_on == ["r"]
    assert answers.queue.empty()  # nothing is answered twice


def test_close_that_cannot_finish_in_time_retires() -> None:
    session, answers = Hanging(1), Answers()
    runner = Runner(session, name="r")
    runner.submit(batch(1), answers.done(1))
    assert session.hung.wait(PATIENCE)
    assert runner.close(0.0) is False
    assert isinstance(answers.next()[2], RunError)
    session.resume.set()
    assert runner.close(PATIENCE)


def test_close_finishes_what_was_submitted() -> None:
    session, answers = Hanging(2), Answers()
    runner = Runner(session, name="r")
    runner.submit(batch(1), answers.done(1))
    runner.submit(batch(2), answers.done(2))
    assert session.hung.wait(PATIENCE)
    session.resume.set()
    assert runner.close(PATIENCE)
    assert [answers.next()[2], answers.next()[2]] == [None, None]
    assert runner.close(PATIENCE)  # idempotent


def test_a_session_that_does_not_close_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Doubling):
        def close(self) -> None:
            raise DeviceLost("no context")

    runner, answers = Runner(Stubborn(1), name="r"), Answers()
    runner.submit(batch(1), answers.done(1))
    assert answers.next()[2] is None
    assert runner.close(PATIENCE)
    assert "its session did not close" in caplog.text and "no context" in caplog.text


def test_a_callback_that_raises_is_logged_and_the_next_batch_is_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner, answers = Runner(Doubling(2), name="r"), Answers()

    def explode(scores: Scores | None, error: BaseException | None) -> None:
        raise RuntimeError("loop is closed")

    runner.submit(batch(1), explode)
    runner.submit(batch(2), answers.done(2))
    assert answers.next()[0] == 2
    assert runner.close(PATIENCE)
    assert "done callback raised" in caplog.text


def test_an_idle_runner_keeps_no_reference_to_the_last_batch() -> None:
    import gc
    import weakref

    session, answers = Doubling(2), Answers()
    runner = Runner(session, name="r")
    values = np.ones(4, np.float32)
    gone = weakref.ref(values)
    runner.submit({"x": values}, answers.done(1))
    answers.next()
    del values
    assert runner.close(PATIENCE)
    gc.collect()
    assert gone() is None
