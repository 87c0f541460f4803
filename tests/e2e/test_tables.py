"""Static embeddings on a real Kafka: a table that is replaced changes the scores of the next events, and no restart."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from schemas.spec import ModelSpec
from schemas.tables import write_table
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka

SPEC = ModelSpec.parse(
    b"""
event = "custom"
features = [{ name = "streamer_vec", field = "streamer", table = "streamer.npy", shape = [4], unknown = "refuse" }]
""",
    "spec.toml",
)


def test_a_replaced_table_changes_the_scores_of_a_running_worker(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, SPEC)
    table = package.path.parent / "streamer.npy"
    old = np.arange(32, dtype=np.float32).reshape(8, 4) % 16
    write_table(table, old)
    pipeline = Pipeline(kafka, unique, package.path, partitions=1)
    worker = start_worker(configuration([pipeline]))

    def score(*streamers: int) -> list[float | None]:
        already = pipeline.scored()
        pipeline.produce(msgspec.msgpack.encode({"streamer": streamer}) for streamer in streamers)
        wait_until(lambda: pipeline.scored() == already + len(streamers), "all are scored")
        return [score.score for score in pipeline.scores()[already:]]

    before = score(*range(8), 3)
    assert before[3] == before[8] and len(set(before)) == 4, "rows 0..3 and 4..7 are the same here"

    write_broken(table)
    wait_until(lambda: score(3) and "the rows read before stay in use" in worker.stderr, "the broken table is logged")
    assert score(*range(8)) == before[:8]

    write_table(table, old[::-1].copy())
    wait_until(lambda: score(3) == [before[0]], "the new table is in use")
    assert score(*range(8)) == before[7::-1]

    pipeline.produce([msgspec.msgpack.encode({"streamer": 8})])
    pipeline.wait_finished()
    (letter,) = pipeline.dead_letters()
    assert dict(letter.headers)["scorelane.reason"] == b"unknown_value"
    assert worker.stderr.count("the rows read before stay in use") == 1


def write_broken(table: Path) -> None:
    """As a job that fails half-way would leave it, had it renamed before it was done."""
    partial = table.with_name("partial")
    partial.write_bytes(table.read_bytes()[:-5])
    partial.replace(table)
