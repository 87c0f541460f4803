"""Naming a GPU, and binding to its memory node, on a made-up /sys."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from engines import placement
from engines.errors import LoadError
from engines.placement import Selector


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes; the GPU at 0000:1b:00.0 hangs on node 1, whose only core is one that this process may use."""
    core = min(os.sched_getaffinity(0))
    for path, text in {
        "devices/system/node/online": "0-1\n",
        "devices/system/node/node0/cpulist": "4096-4100\n",
        "devices/system/node/node1/cpulist": f"{core},5000\n",
        "bus/pci/devices/0000:1b:00.0/numa_node": "1\n",
        "bus/pci/devices/0000:3d:00.0/numa_node": "-1\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(placement, "SYS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (2, Selector(index=2)),
        ("2", Selector(index=2)),
        ("cuda:1", Selector(index=1)),
        ("GPU-8f6c", Selector(uuid="GPU-8f6c")),
        ("MIG-GPU-8f6c/1/0", Selector(uuid="MIG-GPU-8f6c/1/0")),
    ],
)
def test_a_device_is_named_by_index_uuid_or_mig_slice(text: int | str, expected: Selector) -> None:
    assert placement.parse(text) == expected
    assert expected.is_mig == str(text).startswith("MIG")


@pytest.mark.parametrize("text", ["", "-1", "gpu0", "GPU-", "cuda", "1.5"])
def test_other_names_are_refused_with_what_to_give(text: str) -> None:
    with pytest.raises(LoadError, match="nvidia-smi -L"):
        placement.parse(text)


def test_a_mig_slice_becomes_the_only_visible_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with pytest.raises(LoadError, match="CUDA_VISIBLE_DEVICES is not set"):
        placement.expose_mig(Selector(uuid="MIG-1"), started=True)
    placement.expose_mig(Selector(uuid="MIG-1"), started=False)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-1"
    placement.expose_mig(Selector(uuid="MIG-1"), started=True)
    with pytest.raises(LoadError, match="CUDA_VISIBLE_DEVICES is MIG-1"):
        placement.expose_mig(Selector(uuid="MIG-2"), started=False)


def test_kernel_lists() -> None:
    assert placement.parse_list("0-3,8\n") == {0, 1, 2, 3, 8}
    assert placement.parse_list("\n") == set()


@pytest.mark.usefixtures("two_nodes")
def test_the_node_of_a_device_is_the_kernels_word() -> None:
    assert placement.node_of("0000:1B:00.0") == 1
    assert placement.node_of("0000:3D:00.0") is None  # the firmware does not say
    assert placement.node_of("0000:FF:00.0") is None


def test_one_node_makes_no_difference(two_nodes: Path) -> None:
    (two_nodes / "devices/system/node/online").write_text("0\n")
    assert placement.node_of("0000:1B:00.0") is None


@pytest.mark.usefixtures("two_nodes")
def test_a_thread_is_kept_on_the_cores_it_may_use_and_others_are_not_moved() -> None:
    before = os.sched_getaffinity(0)
    found: list[set[int]] = []

    def work() -> None:
        placement.bind_thread(None)
        found.append(os.sched_getaffinity(0))
        placement.bind_thread(0)  # none of node 0's cores is ours: stay
        found.append(os.sched_getaffinity(0))
        placement.bind_thread(1)
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before, before, {min(before)}]
    assert os.sched_getaffinity(0) == before


def test_pages_are_zeroed_aligned_writable_and_of_the_asked_size() -> None:
    pages = placement.pages_on(10_000, 0)
    assert pages.shape == (10_000,) and pages.dtype == np.uint8
    assert pages.ctypes.data % 4096 == 0
    assert not pages.any()
    pages[-1] = 1


def test_the_kernel_accepts_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """mbind with exactly the arguments of `pages_on` succeeds, on kernels that have it."""
    import ctypes

    codes: list[int] = []
    library = ctypes.CDLL(None, use_errno=True)

    class Spy:
        @staticmethod
        def syscall(*arguments: object) -> int:
            codes.append(library.syscall(*arguments) and ctypes.get_errno())
            return codes[-1]

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Spy)
    placement.pages_on(10_000, 0)
    if codes and codes[0] in (1, 38):  # EPERM, ENOSYS: a sandbox without mbind
        pytest.skip("this kernel refuses mbind")
    assert codes == [0]


def test_the_multi_process_service_is_known_by_its_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not placement.mps_runs()
    (tmp_path / "control").touch()
    assert placement.mps_runs()
