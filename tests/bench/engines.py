"""Throughput and latency of the TensorRT engine beside a raw loop, in turns in one process, on a GPU.

    python -m tests.bench.engines [--json FILE] [--seconds 0.4] [--rounds 3] [--models mlp,din] [--precision fp32]

Throughput in thousand rows a second: `raw` is tests/bench/gpu_raw.py with each batch copied into its pinned memory,
`resent` the same without that copy (the same bytes again), `session` is submit and collect of a session, two batches in
flight, a thread each; each waits spinning or blocking. `lanes-N` is what the worker does: one thread feeds all lanes,
which N threads serve (`engines.hub`). Latency is one batch at a time, from the caller's arrays to the scores, in
microseconds.
"""

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

import engines
from engines import cuda, plans, trt_module
from engines.base import Engine, Features, Scores, Session, run
from engines.build import builder
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.package import Package
from engines.plans import PlanFile
from engines.runner import Serving, serve
from engines.train.reference import reference_package
from tests.bench.gpu_raw import RawLoop
from tests.models import random_batch

BATCHES = (64, 256, 1024)
STREAMS = (1, 8)
INPUTS = 8
"""Different batches that each loop goes through."""
LANE_THREADS = (1, 2)
LATENCIES = 3000
COLD = 10
"""First batches of a block, not counted: the variant before it has left its data in the caches."""

Step = Callable[[Features], None]
"""One turn of a loop: hand over a batch, and wait for what has to be waited for."""


class Model:
    """A reference model, its plan, and the engines that wait in both ways."""

    def __init__(self, kind: str, precision: str, folder: Path) -> None:
        self.kind = kind
        self.package: Package = reference_package(folder, kind)  # type: ignore[arg-type]
        rows = Rowset(random_batch(self.package.spec, 2048))
        options = Options(precision=precision, batches=BATCHES)  # type: ignore[arg-type]
        with cuda.current(0):
            plan = builder.build(self.package, cuda.describe(0), options, rows)
        self.plan: PlanFile = plans.judge(plan, accepted=True, report={})
        self.engines: dict[str, Engine] = {
            name: engines.load("trt", self.package, plan=self.plan, wait=wait, lane_threads=threads)
            for name, wait, threads in (
                ("spin", "spin", 1),
                ("block", "block", 1),
                *((str(count), "block", count) for count in LANE_THREADS),
            )
        }
        self.trt = trt_module.load()
        self.log = trt_module.log(self.trt)
        with cuda.current(0):
            self.raw_engine = self.trt.Runtime(self.log).deserialize_cuda_engine(self.plan.read())

    def inputs(self, batch: int) -> list[Features]:
        return [random_batch(self.package.spec, batch, seed=seed) for seed in range(INPUTS)]

    def raw(self, batch: int, wait: str) -> RawLoop:
        index = next(i for i, profile in enumerate(self.plan.record.profiles) if profile.batch == batch)
        profile = self.plan.record.profiles[index]
        return RawLoop(self.trt, self.raw_engine, index, profile, self.plan.record.output, wait)


def pipelined(session: Session) -> Step:
    """Two batches in flight: each turn submits the next and collects the last."""
    pending = [0]

    def step(features: Features) -> None:
        session.submit(features)
        pending[0] += 1
        if pending[0] == session.depth:
            session.collect()
            pending[0] -= 1

    return step


@contextmanager
def loops(model: Model, variant: str, batch: int, streams: int) -> Iterator[list[Step]]:
    """A step for each stream of one variant, everything warm."""
    name, wait = variant.split("-")
    opened: list[Any] = []
    if name in ("raw", "resent"):
        with cuda.current(0):
            opened = [model.raw(batch, wait) for _ in range(streams)]
        yield [loop.run if name == "raw" else (lambda _, loop=loop: loop.run(None)) for loop in opened]  # type: ignore[misc]
        with cuda.current(0):
            opened.clear()
        return
    sessions = [model.engines[wait].open_session() for _ in range(streams)]
    yield [pipelined(session) for session in sessions]
    for session in sessions:
        session.close()


def rate(steps: Sequence[Step], inputs: Sequence[Features], seconds: float) -> float:
    """Batches a second of all loops together, a thread each."""
    counts = [0] * len(steps)
    barrier = threading.Barrier(len(steps) + 1)
    stop = threading.Event()

    def work(index: int, step: Step) -> None:
        with cuda.current(0):
            for features in inputs:
                step(features)
            barrier.wait()
            turn = 0
            while not stop.is_set():
                step(inputs[turn % INPUTS])
                turn += 1
            counts[index] = turn

    threads = [threading.Thread(target=work, args=(index, step)) for index, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    barrier.wait()
    start = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    took = time.perf_counter() - start
    for thread in threads:
        thread.join()
    return sum(counts) / took


def lanes_rate(model: Model, threads: str, streams: int, inputs: Sequence[Features], seconds: float) -> float:
    """Batches a second through lanes, all fed by this thread as by the worker's event loop."""
    runners = [serve(model.engines[threads].open_session(), name=f"lane-{i}") for i in range(streams)]
    free: SimpleQueue[Serving] = SimpleQueue()
    failed: list[BaseException] = []

    def done(runner: Serving, scores: Scores | None, error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)
        free.put(runner)

    calls = {runner: partial(done, runner) for runner in runners}
    for runner in runners * runners[0].depth:
        free.put(runner)
    turn, counted, start = 0, 0, 0.0
    while not start or time.perf_counter() - start < seconds:
        runner = free.get()
        runner.submit(inputs[turn % INPUTS], calls[runner])
        turn += 1
        if turn == INPUTS * streams:
            counted, start = turn, time.perf_counter()
    rate = (turn - counted) / (time.perf_counter() - start)
    assert all(runner.close(30.0) for runner in runners) and not failed, failed
    return rate


def throughput(model: Model, batch: int, streams: int, seconds: float, rounds: int) -> dict[str, float]:
    """Variant -> thousand rows a second, the median of the rounds, in which the variants take turns."""
    inputs = model.inputs(batch)
    variants = ["raw-spin", "raw-block", "resent-spin", "session-spin", *(f"lanes-{count}" for count in LANE_THREADS)]
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for turn in range(rounds):
        for variant in variants if turn % 2 == 0 else reversed(variants):
            name, wait = variant.split("-")
            if name == "lanes":
                batches = lanes_rate(model, wait, streams, inputs, seconds)
            else:
                with loops(model, variant, batch, streams) as steps:
                    batches = rate(steps, inputs, seconds)
            found[variant].append(batches * batch / 1e3)
    return {variant: float(np.median(rates)) for variant, rates in found.items()}


def latency(model: Model, batch: int) -> dict[str, tuple[float, float]]:
    """Variant -> (p50, p99) microseconds of one batch alone, the variants taking turns by blocks of 100."""
    inputs = model.inputs(batch)
    with cuda.current(0):
        sessions = {f"session-{wait}": model.engines[wait].open_session() for wait in ("spin", "block")}
        raws = {f"raw-{wait}": model.raw(batch, wait) for wait in ("spin", "block")}
        calls: dict[str, Callable[[Features], object]] = {name: raw.run for name, raw in raws.items()}
        calls |= {name: (lambda features, session=s: run(session, features)) for name, s in sessions.items()}  # type: ignore[misc]
        lane, answers = serve(model.engines["1"].open_session(), name="lane"), SimpleQueue[Scores | None]()

        def through_a_lane(features: Features) -> None:
            lane.submit(features, lambda scores, error: answers.put(scores))
            assert answers.get() is not None

        calls["lane"] = through_a_lane
        taken: dict[str, list[float]] = {name: [] for name in calls}
        clock = time.perf_counter
        for block in range(LATENCIES // 100 + 1):
            for name, call in calls.items():
                for turn in range(100 + COLD):
                    features = inputs[turn % INPUTS]
                    start = clock()
                    call(features)
                    if block and turn >= COLD:
                        taken[name].append((clock() - start) * 1e6)
        assert lane.close(30.0)
        for session in sessions.values():
            session.close()
        raws.clear()
        calls.clear()
    return {name: (float(np.percentile(t, 50)), float(np.percentile(t, 99))) for name, t in taken.items()}


def first_batch(model: Model) -> dict[str, float]:
    """Microseconds: the first batch of a warmed session, of a context that nothing warmed, and the steady median."""
    with cuda.current(0):
        batch = model.inputs(256)
        cold = model.raw(256, "block").first_us
        session = model.engines["block"].open_session()
        taken = []
        for turn in range(200):
            start = time.perf_counter()
            run(session, batch[turn % INPUTS])
            taken.append((time.perf_counter() - start) * 1e6)
        session.close()
    return {"warmed": taken[0], "unwarmed": cold, "steady": float(np.median(taken[50:]))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="mlp,din")
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    result: dict[str, Any] = {"device": cuda.describe(0).name, "precision": options.precision}
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.models.split(","):
            model = Model(kind, options.precision, Path(folder))
            result[kind] = measured = {"first": first_batch(model), "latency": {}, "throughput": {}}
            print(f"{kind}: first batch {measured['first']}", flush=True)
            for batch in BATCHES:
                measured["latency"][batch] = found = latency(model, batch)
                line = "  ".join(f"{name} {p50:.0f}/{p99:.0f}" for name, (p50, p99) in found.items())
                ratios = [found[f"session-{wait}"][1] / found[f"raw-{wait}"][1] for wait in ("spin", "block")]
                print(f"{kind} n={batch} p50/p99 us: {line}  p99 ratio s/b {ratios[0]:.2f} {ratios[1]:.2f}", flush=True)
            for streams in STREAMS:
                for batch in BATCHES:
                    rates = throughput(model, batch, streams, options.seconds, options.rounds)
                    measured["throughput"][f"{streams}x{batch}"] = rates
                    line = "  ".join(f"{name} {value:.0f}" for name, value in rates.items())
                    best = max(rates["raw-spin"], rates["raw-block"])
                    ratios = "  ".join(f"{n} {v / best:.2f}" for n, v in rates.items() if n[0] in "sl")
                    print(f"{kind} n={batch} x{streams} krows/s: {line}  of raw: {ratios}", flush=True)
            lanes = {
                name: measured["throughput"]["8x256"][name] / measured["throughput"]["1x256"][name]
                for name in measured["throughput"]["8x256"]
            }
            measured["lanes"] = lanes
            print(f"{kind} 8 lanes over 1 at n=256: {lanes}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
