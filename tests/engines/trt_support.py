"""The TensorRT engine on `fake_gpu`: plans, and the fixtures `gpu` and `package` to import into a test's module."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import engines
from engines import plans
from engines.base import Scores
from engines.build import shapes
from engines.package import Package
from engines.plans import PlanFile, PlanRecord, Profile
from schemas.rows import Tensors
from tests.engines import fake_gpu
from tests.engines.fake_gpu import Gpu
from tests.models import tiny_package


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A fresh device, and the engine's modules bound to it."""
    gpu = Gpu()
    for name, module in fake_gpu.modules(gpu).items():
        monkeypatch.setitem(sys.modules, name, module)
    forget_modules()
    yield gpu
    forget_modules()


def direct(package: Package, batch: Tensors) -> Scores:
    """Scores of a bare runtime session."""
    session = onnxruntime.InferenceSession(package.file("model.onnx"), providers=["CPUExecutionProvider"])
    scores: Scores = session.run(None, dict(batch))[0].reshape(-1)
    return scores


def forget_modules() -> None:
    """Drop the modules that are bound to a device, so that the next import binds them to its own."""
    for name in fake_gpu.ENGINE_MODULES:
        sys.modules.pop(f"engines.{name}", None)
        vars(engines).pop(name, None)


def trt() -> Any:
    return importlib.import_module("engines.trt")


def put_plan(package: Package, buckets: list[Profile], plan: bytes | None = None) -> PlanFile:
    """A plan for the fake device, accepted: the path of the model, its sequence axes free as a real build has them."""
    model = package.path / "freed.onnx"
    onnx.save(shapes.freed(onnx.load(package.file("model.onnx")), shapes.sequences(package.spec)), model)
    data = str(model).encode() if plan is None else plan
    record = PlanRecord(
        model=package.name,
        version=package.version,
        tensorrt="10.6.0",
        device=plans.Device(name="Fake", compute_capability="9.0"),
        precision="fp32",
        profiles=buckets,
        output="score",
        recipe={},
        layers={},
        onnx_sha256=package.manifest.files["model.onnx"],
        timing_cache_sha256="",
        plan_sha256=plans.sha256(data),
        plan_bytes=len(data),
        build_s=0.0,
        created_ms=1,
    )
    return plans.judge(plans.write(package.path, record, data), accepted=True, report={})


def load(package: Package, batches: list[int], lengths: list[int] | None = None, **options: Any) -> Any:
    return trt().TrtEngine(package, put_plan(package, shapes.profiles(package.spec, batches, lengths or [])), **options)


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return tiny_package(tmp_path, "tipping", "mlp")
