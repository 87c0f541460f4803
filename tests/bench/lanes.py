"""Lanes of one GPU as the worker drives them, spread over one or several processes: batches a second of all together.

Each process feeds its lanes from one thread, as the worker's event loop does. Processes that share a GPU take turns on
it unless the vendor's multi-process service runs (`nvidia-cuda-mps-control -d`); with it their kernels overlap.
"""

import gc
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import engines
from engines.base import Engine, Features, Scores
from engines.package import Package
from engines.runner import Serving, serve
from tests.models import random_batch
from worker.interpreter import SWITCH_INTERVAL_S, settle_collector

INPUTS = 8
"""Different batches that a loop goes through."""
ANSWER_S = 30.0


def settle() -> None:
    """The garbage collector as the worker sets it. Its pauses are a tenth of the p99 otherwise."""
    gc.collect()
    settle_collector()


class Lanes:
    """Lanes that the calling thread keeps busy."""

    def __init__(self, engine: Engine, count: int, inputs: Sequence[Features]) -> None:
        self._lanes = [serve(engine.open_session(), name=f"lane-{index}") for index in range(count)]
        self._inputs = inputs
        self._free: SimpleQueue[Serving] = SimpleQueue()
        self._failed: list[BaseException] = []
        self._done = {lane: partial(self._answer, lane) for lane in self._lanes}
        for lane in self._lanes * self._lanes[0].depth:
            self._free.put(lane)
        for _ in range(INPUTS * count):
            self._feed(0)

    def rate(self, seconds: float) -> float:
        """Batches a second."""
        turn, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < seconds:
            self._feed(turn)
            turn += 1
        return turn / took

    def close(self) -> None:
        assert all(lane.close(30.0) for lane in self._lanes) and not self._failed, self._failed

    def _feed(self, turn: int) -> None:
        lane = self._free.get(timeout=ANSWER_S)
        lane.submit(self._inputs[turn % INPUTS], self._done[lane])

    def _answer(self, lane: Serving, scores: Scores | None, error: BaseException | None) -> None:
        if error is not None:
            self._failed.append(error)
        self._free.put(lane)


class Pool:
    """Processes with the engine of one package, which has a plan in service. Use `pool`."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def rate(self, batch: int, lanes: int, processes: int, seconds: float) -> float:
        """Batches a second of `lanes` lanes spread evenly over so many of the processes."""
        used = self._pipes[:processes]
        for order in ((batch, lanes // processes), seconds):
            for pipe in used:
                pipe.send(order)
            answers = [_received(pipe) for pipe in used]
        return sum(answers)


@contextmanager
def pool(package: Path, processes: int) -> Iterator[Pool]:
    """Start them, and end them after the block."""
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(processes):
        mine, theirs = context.Pipe()
        children.append(context.Process(target=_serve, args=(str(package), theirs), daemon=True))
        children[-1].start()
        theirs.close()
        pipes.append(mine)
    try:
        yield Pool(pipes)
        for pipe in pipes:
            pipe.send(None)
        for child in children:
            child.join(30)
    finally:
        for child in children:
            child.kill()


def _received(pipe: Connection) -> float:
    if not pipe.poll(ANSWER_S):
        raise TimeoutError(f"a process of the benchmark has not answered for {ANSWER_S:.0f} s")
    return float(pipe.recv())


def _serve(path: str, orders: Connection) -> None:
    package = Package.open(Path(path))
    engine = engines.load("trt", package)
    settle()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the worker does
    while (order := orders.recv()) is not None:
        batch, count = order
        lanes = Lanes(engine, count, [random_batch(package.spec, batch, seed=seed) for seed in range(INPUTS)])
        orders.send(0.0)  # ready: the others are too before the seconds come
        orders.send(lanes.rate(orders.recv()))
        lanes.close()
    engine.close()
