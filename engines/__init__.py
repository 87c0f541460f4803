"""Arrays in, scores out. No asyncio and no Kafka here; each heavy library is imported in one file only."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Literal

from engines import extras
from engines.base import Engine
from engines.errors import LoadError
from engines.package import Package

EngineKind = Literal["trt", "ort", "trees", "light", "constant"]

KINDS: Final = {
    "ort": ("engines.ort", "OrtEngine"),
    "light": ("engines.light", "LightEngine"),
    "trees": ("engines.trees", "TreesEngine"),
    "constant": ("engines.constant", "ConstantEngine"),
    "trt": ("engines.trt", "TrtEngine"),
}
"""Kind, as configured and as it stands in each score, to module and class. Modules are imported when asked for."""

THREADED: Final = ("ort", "trees")
"""Kinds with a thread pool."""


def load(kind: str, package: Package, *, threads: int = 1, max_batch: int = 1024, **options: Any) -> Engine:
    """The engine of this kind for a package, checked and warm.

    `threads` counts for the kinds of `THREADED`; `options` go to the engine's constructor.
    Raises `LoadError`.
    """
    if kind not in KINDS:
        raise LoadError(f"{package.path}: engine {kind!r} is unknown; choose one of {', '.join(KINDS)}")
    module, name = KINDS[kind]
    try:
        create: Callable[..., Engine] = getattr(import_module(module), name)
    except ImportError as error:
        remedy = extras.install("gpu") if kind == "trt" else "install the libraries that it needs"
        raise LoadError(f"{package.path}: engine {kind!r}: {error}; {remedy}, or choose another engine") from error
    if kind in THREADED:
        options["threads"] = threads
    return create(package, max_batch=max_batch, **options)
