"""Throughput and latency of the TensorRT engine beside a raw loop, in turns in one process, on a GPU.

    python -m tests.bench.engines [--json FILE] [--seconds 0.4] [--rounds 3] [--models mlp,din] [--precision fp32]
                                  [--parts latency,throughput]

Throughput in thousand rows a second: `raw` is tests/bench/gpu_raw.py with each batch copied into its pinned memory,
`resent` the same without that copy (the same bytes again), `session` is submit and collect of a session, two batches in
flight, a thread each; each waits spinning or blocking. `lanes-N` is what the worker does: the lanes are spread over N
processes, in each of which one thread feeds them and the engine's own threads serve them (`tests/bench/lanes.py`).
Latency is one batch at a time, from the caller's arrays to the scores, in microseconds.
"""

import argparse
import json
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

import engines
from engines import cuda, plans, trt_module
from engines.base import Engine, Features, Scores, Session, run
from engines.build import pipeline
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.package import Package
from engines.plans import PlanFile
from engines.runner import serve
from engines.train.reference import reference_package
from tests.bench.gpu_raw import RawLoop
from tests.bench.lanes import INPUTS, Pool, pool, settle
from tests.models import random_batch

BATCHES = (64, 256, 1024)
STREAMS = (1, 8)
PROCESSES = (1, 2, 4, 8)
LATENCIES = 3000
PATIENCE_S = 20.0
SITTINGS = 25
COLD = 10
"""First batches of a block, not counted: the variant before it has left its data in the caches."""

Step = Callable[[Features], None]
"""One turn of a loop: hand over a batch, and wait for what has to be waited for."""


def build(kind: str, precision: str, folder: Path) -> None:
    """A reference package with its plan in service."""
    package = reference_package(folder, kind)  # type: ignore[arg-type]
    options = Options(precision=precision, batches=BATCHES)  # type: ignore[arg-type]
    plan = pipeline.build(package, options, Rowset(random_batch(package.spec, 2048)))
    plans.judge(plan, accepted=True, report={})


class Model:
    """A reference model, its plan, and the engines that wait in both ways."""

    def __init__(self, kind: str, precision: str, folder: Path) -> None:
        self.kind = kind
        # As a worker has it: in the heap that the builder leaves behind one allocation in many takes 0.3 ms.
        builder = multiprocessing.get_context("spawn").Process(target=build, args=(kind, precision, folder))
        builder.start()
        builder.join()
        if builder.exitcode != 0:
            raise SystemExit(f"{kind}: the plan was not built")
        (path,) = folder.glob(f"*-{kind}/*")
        self.package = Package.open(path)
        self.plan: PlanFile
        (self.plan,) = plans.found(path)
        self.engines: dict[str, Engine] = {
            wait: engines.load("trt", self.package, plan=self.plan, wait=wait) for wait in ("spin", "block")
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


def throughput(model: Model, spread: Pool, batch: int, streams: int, seconds: float, rounds: int) -> dict[str, float]:
    """Variant -> thousand rows a second, the median of the rounds, in which the variants take turns."""
    inputs = model.inputs(batch)
    processes = [count for count in PROCESSES if count <= streams]
    variants = ["raw-spin", "raw-block", "resent-spin", "session-spin", *(f"lanes-{count}" for count in processes)]
    found: dict[str, list[float]] = {variant: [] for variant in variants}
    for turn in range(rounds):
        for variant in variants if turn % 2 == 0 else reversed(variants):
            name, how = variant.split("-")
            if name == "lanes":
                batches = spread.rate(batch, streams, int(how), seconds)
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
        lane, answers = serve(model.engines["block"].open_session(), name="lane"), SimpleQueue[Scores | None]()

        def through_a_lane(features: Features) -> None:
            lane.submit(features, lambda scores, error: answers.put(scores))
            assert answers.get(timeout=PATIENCE_S) is not None

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
    """Microseconds, medians of several sessions: the first batch of a warmed one, of a context that nothing warmed, and
    the steady state; "worst" is the longest of the first."""
    taken: dict[str, list[float]] = {"warmed": [], "unwarmed": [], "steady": []}
    with cuda.current(0):
        batches = model.inputs(256)
        for _ in range(SITTINGS):
            taken["unwarmed"].append(model.raw(256, "block").first_us)
            session = model.engines["block"].open_session()
            one = []
            for turn in range(200):
                start = time.perf_counter()
                run(session, batches[turn % INPUTS])
                one.append((time.perf_counter() - start) * 1e6)
            session.close()
            taken["warmed"].append(one[0])
            taken["steady"].append(float(np.median(one[50:])))
    found = {name: float(np.median(us)) for name, us in taken.items()} | {"worst": max(taken["warmed"])}
    return {name: round(us, 1) for name, us in found.items()}


def latencies(model: Model) -> dict[int, dict[str, tuple[float, float]]]:
    """By rows of a batch, printed as they come."""
    measured = {}
    for batch in BATCHES:
        measured[batch] = found = latency(model, batch)
        line = "  ".join(f"{name} {p50:.0f}/{p99:.0f}" for name, (p50, p99) in found.items())
        pairs = {"session-spin": "raw-spin", "session-block": "raw-block", "lane": "raw-block"}
        ratios = "  ".join(f"{name} {found[name][1] / found[raw][1]:.2f}" for name, raw in pairs.items())
        print(f"{model.kind} n={batch} p50/p99 us: {line}  p99 of raw: {ratios}", flush=True)
    return measured


def throughputs(model: Model, seconds: float, rounds: int) -> dict[str, dict[str, float]]:
    """By streams and rows of a batch ("8x256"), printed as they come."""
    rates = {}
    with pool(model.package.path, max(PROCESSES)) as spread:
        for streams in STREAMS:
            for batch in BATCHES:
                rates[f"{streams}x{batch}"] = here = throughput(model, spread, batch, streams, seconds, rounds)
                line = "  ".join(f"{name} {value:.0f}" for name, value in here.items())
                best = max(here["raw-spin"], here["raw-block"])
                shares = "  ".join(f"{name} {value / best:.2f}" for name, value in here.items() if name[0] in "sl")
                print(f"{model.kind} n={batch} x{streams} krows/s: {line}  of raw: {shares}", flush=True)
    one, eight = (rates[f"{streams}x256"] for streams in STREAMS)
    lanes = {name: round(value / one[name if name in one else "lanes-1"], 2) for name, value in eight.items()}
    print(f"{model.kind} 8 over 1 at n=256: {lanes}", flush=True)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", default="mlp,din")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--parts", default="latency,throughput")
    options = parser.parse_args()
    result: dict[str, Any] = {"device": cuda.describe(0).name, "precision": options.precision}
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.models.split(","):
            model = Model(kind, options.precision, Path(folder))
            settle()
            measured: dict[str, Any] = {}
            result[kind] = measured
            if "latency" in options.parts:
                measured["first"] = first = first_batch(model)
                print(f"{kind}: first batch {first}", flush=True)
                measured["latency"] = latencies(model)
            if "throughput" in options.parts:
                measured["throughput"] = throughputs(model, options.seconds, options.rounds)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
