"""A topic whose model reads static embeddings: opened with the package, refreshed between polls."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from engines.errors import LoadError
from engines.package import Package
from schemas.spec import ModelSpec
from schemas.tables import write_table
from tests.e2e.reference import fingerprint_package
from tests.worker.chunks import ManualClock, Record
from tests.worker.test_topic import Caught
from tests.worker.topics import config, loaded, whole
from worker.partition import Partition
from worker.preflight import check_files

SPEC = ModelSpec.parse(
    b"""
event = "custom"
features = [{ name = "streamer_vec", field = "streamer_id", table = "streamer.npy", shape = [2], default = 0 }]
""",
    "spec.toml",
)
OLD = np.array([[0, 0], [1, 2], [3, 4]], np.float32)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    """The table lies beside its version, in the model's directory."""
    package = fingerprint_package(tmp_path, SPEC)
    write_table(package.path.parent / "streamer.npy", OLD)
    return package


async def test_embeddings_are_read_and_refreshed_while_events_come(package: Package) -> None:
    clock = ManualClock(1000.0, 1e6)
    async with loaded(package, clock=clock, fallback=()) as topic:
        lane = Caught()
        partition = Partition("t", 0, lane)  # type: ignore[arg-type]

        def rows(offset: int) -> list[list[float]]:
            bodies = [{"streamer_id": 2}, {}, {"streamer_id": 1}]
            values = [msgspec.msgpack.encode(body) for body in bodies]
            topic.take_in(partition, [Record(offset + i, value=value) for i, value in enumerate(values)])
            return lane.offered[-1][0].rows.tensors["streamer_vec"].tolist()

        assert rows(0) == OLD[[2, 0, 1]].tolist()
        write_table(package.path.parent / "streamer.npy", OLD + 7)
        assert rows(3) == OLD[[2, 0, 1]].tolist(), "the file was looked at within the last second"
        clock.now += 1.0
        assert rows(6) == (OLD + 7)[[2, 0, 1]].tolist()


async def test_a_table_that_is_not_there_stops_the_start_and_is_found_by_the_check(package: Package) -> None:
    (package.path.parent / "streamer.npy").unlink()
    with pytest.raises(LoadError, match=r"streamer\.npy: features\.streamer_vec\.table: not in "):
        async with loaded(package, fallback=()):
            pass
    (problem,) = check_files(whole(config(package, fallback=())), "worker.toml").problems
    assert (problem.key, problem.remedy) == ("topics[t].model", "put it there")
    assert "features.streamer_vec.table: not in " in problem.problem
