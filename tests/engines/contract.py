"""What every engine promises (`engines.base`), as cases that each engine's tests inherit."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engines.base import Engine, Scores, Session, run
from engines.errors import RunError
from engines.package import Package
from schemas.rows import Tensors
from tests.models import random_batch, tiny_package

MAX_BATCH = 33


class EngineContract:
    """A subclass says how its engine is loaded and what scores are right, and gets the cases below."""

    tolerance = 1e-6
    """Largest difference from the reference, absolute."""

    def load(self, package: Package, max_batch: int) -> Engine:
        raise NotImplementedError

    def reference(self, package: Package, batch: Tensors) -> Scores:
        """[n] right scores, by other code than the engine's."""
        raise NotImplementedError

    @pytest.fixture
    def package(self, tmp_path: Path) -> Package:
        return tiny_package(tmp_path, "tipping", "mlp")

    @pytest.fixture
    def engine(self, package: Package) -> Iterator[Engine]:
        engine = self.load(package, MAX_BATCH)
        yield engine
        engine.close()

    @pytest.fixture
    def session(self, engine: Engine) -> Iterator[Session]:
        session = engine.open_session()
        yield session
        session.close()

    def test_row_i_is_scored_for_row_i_at_every_batch_size(self, package: Package, session: Session) -> None:
        batch = random_batch(package.spec, MAX_BATCH, seed=1)
        for n in range(1, MAX_BATCH + 1):
            start = MAX_BATCH - n
            part = {name: tensor[start:] for name, tensor in batch.items()}
            scores = run(session, part)
            assert scores.shape == (n,) and scores.dtype == np.float32
            np.testing.assert_allclose(scores, self.reference(package, part), atol=self.tolerance, rtol=0)

    def test_order_of_rows_is_order_of_scores(self, package: Package, session: Session) -> None:
        batch = random_batch(package.spec, MAX_BATCH, seed=2)
        order = np.random.default_rng(3).permutation(MAX_BATCH)
        scores = run(session, batch)
        shuffled = run(session, {name: np.ascontiguousarray(tensor[order]) for name, tensor in batch.items()})
        np.testing.assert_allclose(shuffled, scores[order], atol=self.tolerance, rtol=0)

    @pytest.mark.parametrize(
        "damage", ["no_rows", "too_many", "dtype", "shape", "rank", "lengths", "missing", "unknown", "strided"]
    )
    def test_wrong_batch_is_refused_and_the_session_goes_on(
        self, package: Package, session: Session, damage: str
    ) -> None:
        batch = random_batch(package.spec, 4, seed=4)
        expected = self.reference(package, batch)
        with pytest.raises(RunError):
            session.submit(damaged(package, batch, damage))
        with pytest.raises(RunError):
            session.collect()
        np.testing.assert_allclose(run(session, batch), expected, atol=self.tolerance, rtol=0)

    def test_two_sessions_on_two_threads_do_not_mix(self, package: Package, engine: Engine) -> None:
        batches = [random_batch(package.spec, n, seed=n) for n in (MAX_BATCH, 7)]
        expected = [self.reference(package, batch) for batch in batches]

        def work(index: int) -> list[Scores]:
            session = engine.open_session()
            try:
                return [run(session, batches[index]) for _ in range(40)]
            finally:
                session.close()

        with ThreadPoolExecutor(2) as pool:
            for results, right in zip(pool.map(work, (0, 1)), expected, strict=True):
                for scores in results:
                    np.testing.assert_allclose(scores, right, atol=self.tolerance, rtol=0)

    def test_scores_belong_to_the_caller(self, package: Package, session: Session) -> None:
        first, second = (random_batch(package.spec, MAX_BATCH, seed=seed) for seed in (5, 6))
        scores = run(session, first)
        kept = scores.copy()
        for tensor in first.values():
            tensor[:] = 0
        for _ in range(session.depth):
            run(session, second)
        np.testing.assert_array_equal(scores, kept)
        scores[:] = -1.0
        expected = self.reference(package, second)
        np.testing.assert_allclose(run(session, second), expected, atol=self.tolerance, rtol=0)

    def test_depth_bounds_what_is_pending_and_results_come_in_order(self, package: Package, session: Session) -> None:
        batches = [random_batch(package.spec, n + 1, seed=n) for n in range(session.depth)]
        for batch in batches:
            session.submit(batch)
        with pytest.raises(RunError):
            session.submit(random_batch(package.spec, 1))
        for batch in batches:
            expected = self.reference(package, batch)
            np.testing.assert_allclose(session.collect(), expected, atol=self.tolerance, rtol=0)

    def test_nothing_to_collect_is_an_error(self, session: Session) -> None:
        with pytest.raises(RunError):
            session.collect()

    def test_close_is_idempotent_and_drops_what_is_pending(self, package: Package, engine: Engine) -> None:
        session = engine.open_session()
        batch = random_batch(package.spec, 2)
        session.submit(batch)
        session.close()
        session.close()
        for call in (session.collect, lambda: session.submit(batch)):
            with pytest.raises(RunError):
                call()
        engine.close()
        engine.close()

    def test_engine_says_what_it_is(self, package: Package, engine: Engine) -> None:
        assert engine.version == package.version
        assert engine.max_batch == MAX_BATCH
        assert engine.name


def damaged(package: Package, batch: Tensors, damage: str) -> Tensors:
    """The batch with one thing wrong in its first tensor."""
    name = package.spec.tensors[0].name
    tensor = batch[name]
    others = {key: value for key, value in batch.items() if key != name}
    match damage:
        case "no_rows":
            return {key: value[:0] for key, value in batch.items()}
        case "too_many":
            return random_batch(package.spec, MAX_BATCH + 1)
        case "dtype":
            return {**batch, name: tensor.astype(np.float64)}
        case "shape":
            return {**batch, name: np.ascontiguousarray(tensor[:, 1:])}
        case "rank":
            return {**batch, name: tensor[..., None]}
        case "lengths":
            return {**batch, name: tensor[:-1]}
        case "missing":
            return others
        case "unknown":
            return {**batch, "other": tensor}
        case "strided":
            return {**batch, name: np.asfortranarray(tensor)}
    raise ValueError(damage)
