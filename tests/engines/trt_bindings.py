"""What the real TensorRT Python bindings offer, without a GPU and without TensorRT's libraries.

The bindings of each version are fetched once by pip, checked by hash and kept in the user's cache. They load beside
three empty libraries that hold the few symbols they ask for; a subprocess then writes down every class, member,
signature and settable property. Objects made that way would not work, their description does.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

WHEELS = {
    "10.6.0": (
        "tensorrt-cu12-bindings==10.6.0 --hash=sha256:8a1bd5e7911f9875a3c3436cdb834e6aba7a94ab02c42e36883d025ce448835b"
    ),
    "10.15.1.29": (
        "tensorrt-cu13-bindings==10.15.1.29 "
        "--hash=sha256:7c17a2d83de68bb13531989d5f2edf4c2a7e710e41e8b5652f0d170d2893b1bc"
    ),
    "11.4.0.106": (
        "tensorrt-cu13-bindings==11.4.0.106 "
        "--hash=sha256:5fc7a6c412881f7212030893bd5531b1a0ff415c72c7678dfe4ead7a7765b38d"
    ),
}
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64")
SYMBOLS = {
    "nvinfer": (
        "createInferBuilder_INTERNAL",
        "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL",
        "getBuilderPluginRegistry",
        "getPluginRegistry",
    ),
    "nvinfer_plugin": ("initLibNvInferPlugins",),
    "nvonnxparser": ("createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getNvOnnxParserVersion"),
}
"""Library -> the C symbols that the bindings need to load."""

DUMP = """
import json, sys, tensorrt_bindings as trt
def member(owner, name):
    value = getattr(owner, name)
    text = getattr(value, "__doc__", None) or ""
    settable = isinstance(value, property) and value.fset is not None
    return {"doc": text if callable(value) else "", "callable": callable(value), "settable": settable}
classes = {
    name: {m: member(value, m) for m in dir(value) if m == "__init__" or not m.startswith("__")}
    for name, value in vars(trt).items() if isinstance(value, type)
}
names = [name for name in vars(trt) if not name.startswith("_")]
json.dump({"version": trt.__version__, "names": names, "classes": classes}, open(sys.argv[1], "w"))
"""


@dataclass(frozen=True)
class Parameter:
    name: str
    required: bool


@dataclass(frozen=True)
class Api:
    """The description of one version."""

    version: str
    names: frozenset[str]
    classes: dict[str, dict[str, dict[str, object]]]

    def has(self, cls: str, member: str) -> bool:
        return member in self.classes.get(cls, {})

    def settable(self, cls: str, member: str) -> bool:
        return bool(self.classes[cls][member]["settable"])

    def signatures(self, cls: str, member: str) -> list[list[Parameter]]:
        """Parameters, without self, of every overload, read from the docstring that pybind11 writes."""
        doc = str(self.classes[cls][member]["doc"])
        return [_parameters(found) for found in re.findall(rf"^(?:\d+\. )?{member}\((.*)\) -> ", doc, re.MULTILINE)]


def api(version: str) -> Api:
    """Describe one version; skips the test with the reason where that is impossible."""
    folder = _cache() / version
    described = folder / "api.json"
    if not described.exists():
        if (sys.version_info[:2], platform.machine(), sys.platform) != ((3, 12), "x86_64", "linux"):
            pytest.skip("the bindings are pinned for Python 3.12 on x86-64 Linux")
        if (compiler := shutil.which("gcc")) is None:
            pytest.skip("gcc is needed to build the empty libraries that the bindings load beside")
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(version, folder)
        _build_libraries(version, folder, compiler)
        _describe(folder, described)
    found = json.loads(described.read_text())
    assert found["version"] == version
    return Api(version, frozenset(found["names"]), found["classes"])


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scorelane" / "tensorrt-bindings"


def _fetch(version: str, folder: Path) -> None:
    wanted = folder / "requirements.txt"
    wanted.write_text(WHEELS[version] + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--dest", str(folder), "-r", str(wanted), "--disable-pip-version-check"]
    for name in PLATFORMS:
        command += ["--platform", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        if "DO NOT MATCH THE HASHES" in done.stderr:
            pytest.fail(f"TensorRT {version}: the bindings on the index are not the pinned ones: {done.stderr}")
        reason = (done.stderr.strip().splitlines() or ["nothing was downloaded"])[-1]
        pytest.skip(f"the bindings of TensorRT {version} cannot be fetched: {reason}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(folder)


def _build_libraries(version: str, folder: Path, compiler: str) -> None:
    major = version.split(".")[0]
    for library, symbols in SYMBOLS.items():
        source = folder / f"{library}.c"
        source.write_text("".join(f"void *{symbol}(void) {{ return 0; }}\n" for symbol in symbols))
        soname = f"lib{library}.so.{major}"
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / soname), str(source), f"-Wl,-soname,{soname}"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


def _describe(folder: Path, target: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
    partial = target.with_suffix(".partial")
    command = [sys.executable, "-c", DUMP, str(partial)]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=environment)
    partial.rename(target)


def _parameters(text: str) -> list[Parameter]:
    found = []
    for part in _split(text):
        name, _, rest = part.partition(":")
        if name.strip() not in ("self", "*args", "**kwargs", ""):
            found.append(Parameter(name.strip(), "=" not in rest))
    return found


def _split(text: str) -> list[str]:
    """Parameters at the top level: types may hold commas in brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char in "[(<") - (char in "])>")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()]
