"""Return values of the driver: all are looked at, and each kind is an error of its own."""

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

import engines
from engines.errors import DeviceLost, EngineError, OutOfMemory, RunError
from tests.engines.fake_gpu import Status
from tests.engines.trt_support import gpu

__all__ = ["gpu"]
"""Fixture."""


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", OutOfMemory),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", DeviceLost),
        ("CUDA_ERROR_LAUNCH_FAILED", DeviceLost),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", DeviceLost),
        ("CUDA_ERROR_INVALID_VALUE", RunError),
        ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", RunError),
    ],
)
def test_a_status_is_out_of_memory_a_lost_device_or_a_failed_run(status: str, kind: type[EngineError]) -> None:
    driver = importlib.import_module("engines.driver")
    with pytest.raises(EngineError, match=f"cuCall: {status}") as error:
        driver.check((SimpleNamespace(name=status), None), "cuCall")
    assert type(error.value) is kind


@pytest.mark.usefixtures("gpu")
def test_what_a_call_returns_beside_its_status_is_handed_on() -> None:
    driver = importlib.import_module("engines.driver")
    assert driver.check((Status.CUDA_SUCCESS,), "cuCall") == []
    assert driver.check((Status.CUDA_SUCCESS, 7), "cuCall") == 7
    assert driver.check((Status.CUDA_SUCCESS, 7, 8), "cuCall") == [7, 8]


def test_every_call_of_the_driver_is_checked() -> None:
    """Handed to `check`, or its status taken apart from what else it returns."""
    tree = ast.parse((Path(engines.__file__).parent / "driver.py").read_text())
    calls = {node for node in ast.walk(tree) if _calls_driver(node)}
    looked_at: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
            looked_at.add(node.args[0])
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            first = node.targets[0].elts[0]
            if isinstance(first, ast.Name) and first.id == "status":
                looked_at.add(node.value)
    assert len(calls) > 10
    assert [node.lineno for node in calls - looked_at] == []  # type: ignore[attr-defined]


def _calls_driver(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "driver"
        and node.func.attr.startswith("cu")
    )
