"""What the whole process does: it keeps its memory, and ends when its device is gone."""

import re
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, Position, configuration, encode, positions, tips
from tests.kafka.client import Client
from tests.kafka.process import Process, free_port, wait_until
from tests.kafka.worker import to_toml
from tests.models import tiny_package

pytestmark = pytest.mark.kafka

FAILING = """
import sys
import time

import engines
from engines.base import Session
from engines.errors import DeviceLost
from engines.ort import OrtEngine
from engines.session import CpuSession
from worker.cli import main


class Failing(OrtEngine):
    def open_session(self) -> Session:
        return CpuSession(self._inputs, self._fail)

    def _fail(self, features, n):
        if not any(tensor.any() for tensor in features.values()):
            return self._score(features, n)  # the zeros by which its speed is measured
        if how == "lost":
            raise DeviceLost("error 700")
        time.sleep(600)


engines.KINDS["ort"] = ("__main__", "Failing")
file, how = sys.argv[1:]
sys.argv = ["scorelane", "run", "--config", file]
main()
"""
"""A worker whose engine `ort` loses its device at the first event, or hangs at every one."""


def failing(how: str, pipeline: Pipeline, folder: Path) -> Process:
    file = folder / "worker.toml"
    file.write_text(to_toml({**configuration([pipeline]), "admin": {"port": free_port()}}))
    return Process([sys.executable, "-c", FAILING, str(file), how], folder / "worker.log")


def test_a_lost_device_leaves_its_events_to_the_next_engine_and_ends_the_process(
    kafka: Client, unique: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka, unique, tiny_package(tmp_path).path, options={"fallback": ["light"]})
    taken = pipeline.produce([encode(event) for event in tips(50)])
    worker = failing("lost", pipeline, tmp_path)
    try:
        assert worker.wait(60.0) == 1, "so that whoever started it does so again"
    finally:
        worker.kill()
    assert f"topic {pipeline.name}: engine ort: the device was lost; start the process again" in worker.tail()
    scores = pipeline.scores()
    assert positions(scores) == dict.fromkeys(taken, 1)
    assert {score.engine for score in scores} == {"light"}
    assert {score.reason for score in scores} <= {"ort:device_lost", "ort:breaker:device_lost"}
    assert pipeline.finished()


def test_an_engine_whose_sessions_hang_leaves_its_events_to_the_next_one_and_ends_the_process(
    kafka: Client, unique: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(kafka, unique, tiny_package(tmp_path).path, options={"fallback": ["light"]})
    events, taken = map(encode, tips(10_000)), list[Position]()
    worker = failing("hang", pipeline, tmp_path)

    def ended() -> bool:
        taken.extend(pipeline.produce(islice(events, 5)))
        return worker.exit_code is not None

    try:
        wait_until(ended, "three sessions have hung", every_s=0.1)
        assert worker.wait(0.0) == 1
    finally:
        worker.kill()
    assert f"topic {pipeline.name}: engine {pipeline.name}-0: 3 sessions hung" in worker.tail()
    scores = pipeline.scores()
    assert positions(scores).items() <= dict.fromkeys(taken, 1).items()
    assert {score.engine for score in scores} == {"light"}
    assert "ort:hung" in {score.reason for score in scores}


def test_locked_memory_is_locked_once_it_is_ready(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    pipeline = Pipeline(kafka, unique, tiny_package(tmp_path).path)
    for locked in (False, True):
        worker = start_worker(configuration([pipeline], worker={"lock_memory": locked}))
        status = Path(f"/proc/{worker.pid}/status").read_text()
        [found] = re.findall(r"VmLck:\s+(\d+) kB", status)
        assert (int(found) > 10 << 10) is locked
        assert worker.sigterm() == 0
