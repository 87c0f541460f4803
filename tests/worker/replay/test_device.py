"""The end of a session of a modelled device, in simulated time."""

import asyncio
from random import Random

import numpy as np
import pytest

from engines.base import Features, Scores
from worker.replay.clock import ReplayClock
from worker.replay.device import DeviceSession, Pace
from worker.replay.faults import DeviceFaults, Fault
from worker.replay.virtual_loop import VirtualLoop


class OneHalf:
    """Scores every row 0.5."""

    depth = 1

    def __init__(self) -> None:
        self.closed = False

    def run(self, features: Features) -> Scores:
        return np.full(len(features["x"]), 0.5, np.float32)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("fault", "closed", "at"),
    [
        ([], True, 2.0),
        ([Fault("slow", 0.0, 100.0, "ort", 4.0)], True, 8.0),
        ([Fault("slow", 0.0, 100.0, "ort", 40.0)], False, 11.0),
        ([Fault("hang", 0.0, 100.0, "ort")], False, 11.0),
    ],
)
def test_a_close_waits_for_the_batch_that_its_caller_has_given_up(fault: list[Fault], closed: bool, at: float) -> None:
    """The batch takes 2 s, its caller waits for 1 s, the close for 10 s."""
    kept = OneHalf()

    async def main() -> tuple[bool, float]:
        clock = ReplayClock(0.0)
        clock.begin()
        session = DeviceSession(kept, Pace(fixed_s=2.0, row_s=0.0), DeviceFaults(fault, {"ort"}), clock, Random(0), "s")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await session.run({"x": np.zeros((3, 1), np.float32)})
        return await session.close(10.0), clock.elapsed

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == (closed, at)
    assert kept.closed is closed
