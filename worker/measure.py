"""How long an engine takes here and now, for plans and replays."""

import time

import numpy as np

import engines
from engines.base import run
from engines.package import Package

SIZES = (1, 16, 64, 256)
REPEATS = 30


def timed(package: Package, engine: str, max_batch: int) -> list[tuple[int, float]]:
    """(rows, median seconds) of batches of a few sizes, the largest being `max_batch`. Raises `EngineError`."""
    loaded = engines.load(engine, package, max_batch=max_batch)
    session = loaded.open_session()
    points = []
    try:
        for rows in (*(size for size in SIZES if size < max_batch), max_batch):
            features = {t.name: np.zeros((rows, *t.shape), t.dtype) for t in package.spec.tensors}
            times = []
            for _ in range(REPEATS):
                started = time.perf_counter()
                run(session, features)
                times.append(time.perf_counter() - started)
            points.append((rows, sorted(times)[REPEATS // 2]))
    finally:
        session.close()
        loaded.close()
    return points
