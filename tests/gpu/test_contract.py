"""The engines' contract on the GPU, and what only real streams, contexts and graphs can get wrong."""

from collections import deque

import numpy as np
import pytest

import engines
from engines.base import Engine, Scores, run
from engines.package import Package
from engines.plans import PlanFile
from engines.runner import serve
from schemas.rows import Tensors
from tests.engines.contract import EngineContract
from tests.engines.test_ort import direct
from tests.engines.test_runner import PATIENCE, Answers
from tests.gpu.conftest import Build
from tests.models import random_batch

TOLERANCE = 2e-5


class OnGpu(EngineContract):
    tolerance = TOLERANCE

    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("trt", package, max_batch=max_batch)

    def reference(self, package: Package, batch: Tensors) -> Scores:
        return direct(package, batch).reshape(-1)


class TestMlp(OnGpu):
    @pytest.fixture
    def package(self, build: Build) -> Package:
        return build("tipping", "mlp", (1, 8, 32, 64))[0]


class TestMlpEagerly(TestMlp):
    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("trt", package, max_batch=max_batch, graphs=False)


class TestMlpSpinning(TestMlp):
    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("trt", package, max_batch=max_batch, wait="spin")


class TestDinWithSequenceBuckets(OnGpu):
    @pytest.fixture
    def package(self, build: Build) -> Package:
        return build("ad", "din", (4, 16, 64), (5, 16))[0]


@pytest.fixture
def mlp(build: Build) -> tuple[Package, PlanFile]:
    return build("tipping", "mlp", (1, 8, 32, 64))


@pytest.fixture
def din(build: Build) -> tuple[Package, PlanFile]:
    return build("ad", "din", (4, 16, 64), (5, 16))


def test_graphs_and_eager_runs_give_the_same_scores(din: tuple[Package, PlanFile]) -> None:
    package, _ = din
    captured, eager = (engines.load("trt", package, max_batch=64, graphs=graphs) for graphs in (True, False))
    sessions = [engine.open_session() for engine in (captured, eager)]
    assert [session.graphs > 0 for session in sessions] == [True, False]  # type: ignore[attr-defined]
    for n in (1, 3, 4, 5, 16, 17, 63, 64):
        batch = random_batch(package.spec, n, seed=n)
        first, second = (run(session, batch) for session in sessions)
        np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-7)
    for session in sessions:
        session.close()
    for engine in (captured, eager):
        engine.close()


@pytest.mark.parametrize("model", ["mlp", "din"])
def test_every_bucket_is_captured_in_both_slots(model: str, request: pytest.FixtureRequest) -> None:
    package, plan = request.getfixturevalue(model)
    engine = engines.load("trt", package, max_batch=64)
    session = engine.open_session()
    assert session.graphs == 2 * len(plan.record.profiles)  # type: ignore[attr-defined]
    session.close()
    engine.close()


def test_rows_beyond_n_never_reach_a_score(mlp: tuple[Package, PlanFile]) -> None:
    package, _ = mlp
    engine = engines.load("trt", package, max_batch=64)
    session = engine.open_session()
    loud, quiet = random_batch(package.spec, 64, seed=1), random_batch(package.spec, 33, seed=2)
    expected = run(session, quiet)
    for _ in range(4):
        run(session, loud)
        run(session, loud)
        scores = run(session, quiet)
        assert scores.shape == (33,)
        np.testing.assert_array_equal(scores, expected)
    session.close()
    engine.close()


def test_contexts_used_in_turn_keep_their_shapes(din: tuple[Package, PlanFile]) -> None:
    """Every bucket after every other, two batches in flight: a context that loses its profile gives wrong scores."""
    package, _ = din
    engine = engines.load("trt", package, max_batch=64)
    session = engine.open_session()
    rng = np.random.default_rng(0)
    waiting: deque[Scores] = deque()
    for step in range(300):
        batch = random_batch(package.spec, int(rng.integers(1, 65)), seed=step)
        session.submit(batch)
        waiting.append(direct(package, batch).reshape(-1) if step % 10 == 0 else np.empty(0, np.float32))
        if len(waiting) == session.depth:
            expected = waiting.popleft()
            scores = session.collect()
            if len(expected):
                np.testing.assert_allclose(scores, expected, atol=TOLERANCE)
    session.close()
    engine.close()


def test_eight_lanes_at_once_keep_their_batches_apart(din: tuple[Package, PlanFile]) -> None:
    package, _ = din
    engine = engines.load("trt", package, max_batch=64)
    lanes = [(serve(engine.open_session(), name=f"lane-{i}"), Answers()) for i in range(8)]
    batches = [random_batch(package.spec, 5 + 7 * i, seed=i) for i in range(8)]
    expected = [direct(package, batch).reshape(-1) for batch in batches]
    for _ in range(100):
        for lane, (runner, answers) in enumerate(lanes):
            for turn in range(runner.depth):
                runner.submit(batches[(lane + turn) % 8], answers.done((lane + turn) % 8))
        for runner, answers in lanes:
            for _ in range(runner.depth):
                label, scores, error = answers.next()
                assert error is None and scores is not None and isinstance(label, int)
                np.testing.assert_allclose(scores, expected[label], atol=TOLERANCE)
    for runner, _ in lanes:
        assert runner.close(PATIENCE)
    engine.close()


def test_a_device_is_found_by_its_uuid(mlp: tuple[Package, PlanFile]) -> None:
    from engines import cuda

    device = cuda.open_device(0)
    assert cuda.open_device(device.uuid) is device
    assert cuda.describe(device.uuid).compute_capability == device.compute_capability
