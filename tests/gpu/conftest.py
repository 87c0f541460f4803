"""What the tests on a real GPU share: skipped as a whole where there is none; plans are built once a run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import plans
from engines.build import pipeline
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.package import Package
from engines.plans import PlanFile
from engines.train.params import Kind
from tests.models import random_batch, tiny_package

HERE = Path(__file__).parent


def missing() -> str | None:
    """Why these tests cannot run here, or None."""
    try:
        import pycuda.driver as cuda
        from cuda.bindings import driver

        from engines import trt_module

        trt_module.load()
        cuda.init()
        return None if cuda.Device.count() and driver else "no GPU is visible"
    except Exception as error:
        return f"no GPU with TensorRT, pycuda and cuda-bindings: {error}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if item.path.is_relative_to(HERE)]
    for item in mine:
        item.add_marker(pytest.mark.gpu)
    if mine and (reason := missing()):
        for item in mine:
            item.add_marker(pytest.mark.skip(reason=reason))


Build = Callable[..., tuple[Package, PlanFile]]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Build]:
    """A tiny package with random weights and its FP32 plan for this GPU, accepted without gates."""
    made: dict[tuple[object, ...], tuple[Package, PlanFile]] = {}

    def build(
        spec: str, kind: Kind, batches: tuple[int, ...], lengths: tuple[int, ...] = ()
    ) -> tuple[Package, PlanFile]:
        key = (spec, kind, batches, lengths)
        if key not in made:
            package = tiny_package(tmp_path_factory.mktemp("package"), spec, kind)
            options = Options(precision="fp32", batches=batches, lengths=lengths)
            rows = Rowset(random_batch(package.spec, 512)) if lengths else None
            made[key] = package, plans.judge(pipeline.build(package, options, rows), accepted=True, report={})
        return made[key]

    yield build
