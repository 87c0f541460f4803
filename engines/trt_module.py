"""Which Python module TensorRT is, and what it said: the one file that imports it.

The full distribution installs `tensorrt`, the bare bindings install `tensorrt_bindings`; both hold the same names. By
convention the module is called `trt` wherever it is used, enums are taken from it by name (their integers moved between
10 and 11), and `tests/engines/test_trt_api.py` checks every such name against the bindings of 10.6, 10.15 and 11.
"""

import importlib
from collections import deque
from typing import Any

from engines import extras
from engines.errors import LoadError

MODULES = ("tensorrt", "tensorrt_bindings")


def load() -> Any:
    """The TensorRT module. Raises `LoadError` with the reasons when neither module can be imported."""
    reasons = []
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:
            reasons.append(f"{name}: {error}")
    raise LoadError(
        f"TensorRT cannot be imported ({'; '.join(reasons)}); {extras.install('gpu')}, on a machine with CUDA"
    )


def build_version(trt: Any) -> str:
    """The exact TensorRT build, such as 10.6.0: a plan runs on the build that made it and on no other."""
    return str(trt.__version__)


def start_runtime(trt: Any, log: Any) -> Any:
    """A `trt.Runtime` that reports to `log`. Raises `LoadError` with what TensorRT said."""
    try:
        return trt.Runtime(log)
    except (TypeError, RuntimeError) as error:  # the bindings say no by "factory function returned nullptr"
        raise LoadError(f"TensorRT's runtime does not start: {log.text()}; check the GPU and driver") from error


def log(trt: Any, kept: int = 32) -> Any:
    """A `trt.ILogger` that keeps the last `kept` warnings and errors; `text()` joins them and forgets them.

    TensorRT reports failures as False or None and puts the reason in its log only. The object must outlive the builder
    or runtime it is given to.
    """

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: deque[str] = deque(maxlen=kept)

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR, trt.ILogger.WARNING):
                self.lines.append(f"{severity.name}: {message}")

        def text(self) -> str:
            said = "; ".join(self.lines) or "TensorRT logged no reason"
            self.lines.clear()
            return said

    return Log()
