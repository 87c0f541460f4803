"""Where a lane runs: which GPU it was given, and the memory node and cores next to that GPU. Linux, without a library.

A session's pinned memory and its threads belong on the node that the GPU hangs on, else each copy crosses the link
between the sockets. On a machine with one node, or where the kernel says nothing, every function here does nothing.

Several workers share a GPU by naming the same device. Their kernels take turns unless the vendor's multi-process
service (MPS) runs on the machine; start it with `nvidia-cuda-mps-control -d` and cap a worker's share with the
environment variable CUDA_MPS_ACTIVE_THREAD_PERCENTAGE. Under MPS a fatal fault of one worker ends the others' contexts
too (each sees `DeviceLost`); MIG slices are isolated, at the price of fixed sizes.
"""

import ctypes
import mmap
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engines.errors import LoadError

SYS = Path("/sys")
_MBIND = {"x86_64": 237, "aarch64": 235}
"""Number of the system call, which the C library does not wrap (libnuma does, but is rarely installed)."""
_MPOL_BIND = 2
_MPOL_MF_STRICT = 1


@dataclass(frozen=True, slots=True)
class Selector:
    """A GPU as it is named in the configuration: an index, a UUID (GPU-...), or a MIG slice's UUID (MIG-...)."""

    index: int = 0
    uuid: str | None = None

    @property
    def is_mig(self) -> bool:
        return self.uuid is not None and self.uuid.startswith("MIG-")


def parse(device: int | str) -> Selector:
    """Read 0, "0", "cuda:0", "GPU-<uuid>" (or its beginning) or "MIG-<uuid>". Raises `LoadError` for anything else."""
    text = str(device).strip()
    if number := re.fullmatch(r"(?:cuda:)?(\d+)", text):
        return Selector(index=int(number[1]))
    if re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", text):
        return Selector(uuid=text)
    raise LoadError(f"device: {text!r}: not a GPU; give an index such as 0, GPU-<uuid> or MIG-<uuid> (nvidia-smi -L)")


def expose_mig(selector: Selector, *, started: bool) -> None:
    """Make a MIG slice the process's only device (index 0). CUDA reads the variable once, when it is `started`.

    Raises `LoadError` when the process sees something else already.
    """
    assert selector.uuid is not None
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None and not started:
        seen = os.environ["CUDA_VISIBLE_DEVICES"] = selector.uuid
    if seen != selector.uuid:
        raise LoadError(
            f"device: {selector.uuid}: CUDA_VISIBLE_DEVICES is {seen or 'not set'}; a process uses one MIG slice: unset"
            " the variable, or set it to the slice and give device 0"
        )


def mps_runs() -> bool:
    """Whether the vendor's multi-process service is there, in which processes of one GPU run side by side: its control
    daemon has a pipe in this directory."""
    # A directory of another user's, which cannot be looked into, is as good as none.
    return os.path.exists(Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control"))


def parse_list(text: str) -> set[int]:
    """The kernel's list format: "0-3,8" -> {0, 1, 2, 3, 8}; "" -> empty."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def nodes() -> set[int]:
    """Memory nodes that are online."""
    return parse_list(_read(SYS / "devices/system/node/online"))


def node_of(pci_bus_id: str) -> int | None:
    """The memory node next to a PCI device ("0000:1B:00.0"), or None with one node or none known."""
    if len(nodes()) < 2:
        return None
    text = _read(SYS / "bus/pci/devices" / pci_bus_id.lower() / "numa_node").strip()
    return int(text) if text.isdigit() else None  # the kernel says -1 where the firmware does not say


def cores_of(node: int) -> set[int]:
    """Cores of a memory node."""
    return parse_list(_read(SYS / f"devices/system/node/node{node}/cpulist"))


def bind_thread(node: int | None) -> None:
    """Keep the calling thread on the node's cores, as far as the process may use them. None: leave it."""
    if node is None:
        return
    cores = cores_of(node) & os.sched_getaffinity(os.getpid())
    if cores:  # a container pinned to the other socket keeps what it was given
        os.sched_setaffinity(0, cores)


def pages_on(nbytes: int, node: int) -> NDArray[np.uint8]:
    """Zeroed page-aligned memory whose pages lie on the node. [nbytes] uint8, freed with the array.

    Where the kernel refuses the binding (a sandbox without mbind) the pages are the nearest it gives.
    """
    block = mmap.mmap(-1, max(nbytes, 1))
    pages = np.frombuffer(block, np.uint8)
    number = _MBIND.get(platform.machine())
    if number is not None:
        mask = (ctypes.c_ulong * 16)()
        bits = 8 * ctypes.sizeof(ctypes.c_ulong)
        mask[node // bits] |= 1 << (node % bits)
        arguments = (pages.ctypes.data, pages.nbytes, _MPOL_BIND, ctypes.addressof(mask), 16 * bits, _MPOL_MF_STRICT)
        ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *map(ctypes.c_ulong, arguments))
    pages.fill(0)  # pages are placed when they are first touched
    return pages[:nbytes]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
