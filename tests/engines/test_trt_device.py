"""Which device is opened and what lies next to it, on `fake_gpu`."""

import importlib
import os
from pathlib import Path
from queue import SimpleQueue

import pytest

from engines import placement, plans
from engines.errors import LoadError
from engines.package import Package
from engines.runner import serve
from tests.engines.fake_gpu import Gpu
from tests.engines.trt_support import gpu, load, package
from tests.models import random_batch

__all__ = ["gpu", "package"]
"""Fixtures."""


def test_a_device_is_described_for_a_plan(gpu: Gpu) -> None:
    cuda = importlib.import_module("engines.cuda")
    described = cuda.describe("cuda:0")
    assert described == plans.Device(
        name="Fake", compute_capability="9.0", uuid="GPU-00000000-0000-0000-0000-000000000abc", driver="13.0"
    )
    assert cuda.open_device("GPU-00000000") is cuda.open_device(0)
    with pytest.raises(LoadError, match="only 1 GPUs are visible"):
        cuda.open_device(1)
    with pytest.raises(LoadError, match="fits 0 devices"):
        cuda.open_device("GPU-ffff")


def test_a_mig_slice_is_refused_where_cuda_has_started_for_a_device_that_is_not_there(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    cuda = importlib.import_module("engines.cuda")
    with pytest.raises(LoadError, match="only 1 GPUs are visible"):
        cuda.open_device(9)
    with pytest.raises(LoadError, match="a process uses one MIG slice"):
        cuda.open_device("MIG-1")


def test_a_mig_slice_is_not_taken_for_the_device_that_is_open_already(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    cuda = importlib.import_module("engines.cuda")
    whole = cuda.open_device(0)
    with pytest.raises(LoadError, match="a process uses one MIG slice"):
        cuda.open_device("MIG-1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    assert cuda.open_device("MIG-1") is whole


def test_memory_and_threads_are_on_the_devices_node(
    gpu: Gpu, package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = max(os.sched_getaffinity(0))
    for path, text in {
        "devices/system/node/online": "0-1",
        "devices/system/node/node1/cpulist": str(core),
        "bus/pci/devices/0000:00:00.0/numa_node": "1",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(placement, "SYS", tmp_path)
    asked: list[int] = []
    pages_on = placement.pages_on
    monkeypatch.setattr(placement, "pages_on", lambda nbytes, node: asked.append(node) or pages_on(nbytes, 0))
    session = load(package, [8]).open_session()
    assert asked == [1]
    [(address, nbytes)] = gpu.registered.items()
    for slot in session._slots[0]:
        assert address <= slot.packed.ctypes.data < slot.output.ctypes.data < address + nbytes
    found: SimpleQueue[set[int]] = SimpleQueue()
    lane = serve(session, name="lane")
    lane.submit(random_batch(package.spec, 3), lambda scores, error: found.put(os.sched_getaffinity(0)))
    assert found.get(timeout=30) == {core}
    assert lane.close(30.0)
    assert gpu.registered == {}
