"""A worker as its users run it: a child process with a TOML file, watched from outside."""

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.kafka.process import Process, free_port, wait_until

Section = Mapping[str, object]
Configuration = Mapping[str, Section | Sequence[Section]]
"""The TOML file: a table, or a list of tables, by name."""


class Worker:
    """Starts at once; `wait_ready` before relying on it."""

    def __init__(self, config: Configuration, directory: Path, name: str = "worker", cpus: str | None = None) -> None:
        port = free_port()
        file = directory / f"{name}.toml"
        file.write_text(to_toml({**config, "admin": {"port": port}}))
        pin = ("taskset", "-c", cpus) if cpus else ()
        command = (*pin, sys.executable, "-m", "worker.cli", "run", "--config", str(file))
        self._url = f"http://127.0.0.1:{port}"
        self._process = Process(command, directory / f"{name}.log", os.environ | {"PYTHONUNBUFFERED": "1"})
        self.pid = self._process.pid

    def wait_ready(self, timeout_s: float = 60.0) -> "Worker":
        def ready() -> bool:
            assert self.exit_code is None, f"the worker ended with {self.exit_code}:\n{self.stderr}"
            return self.get("/readyz")[0] == 200

        try:
            wait_until(ready, "the worker is ready", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.stderr}") from None
        return self

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    @property
    def stderr(self) -> str:
        return self._process.tail(1 << 20)

    def get(self, path: str) -> tuple[int, str]:
        """(status, body) of an admin page; status 0 when nothing answers."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """(status, body) of an answer to a POST."""
        request = urllib.request.Request(self._url + path, body, dict(headers or {}), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples with these labels; 0 where there is none."""
        families = text_string_to_metric_families(self.get("/metrics")[1])
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def sigterm(self, timeout_s: float = 60.0) -> int:
        """Ask it to drain and wait for its end; its exit code."""
        self._process.send(signal.SIGTERM)
        return self._process.wait(timeout_s)

    def sigkill(self) -> None:
        """End it at once. Idempotent."""
        self._process.kill()

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)

    def cpu_s(self) -> float:
        """User and system CPU time so far, all threads."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


def to_toml(config: Configuration) -> str:
    lines: list[str] = []
    for name, value in config.items():
        tables = [(f"[{name}]", value)] if isinstance(value, Mapping) else [(f"[[{name}]]", item) for item in value]
        for header, section in tables:
            lines += [header, *(f"{key} = {_value(item)}" for key, item in section.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """JSON writes strings, numbers and booleans as TOML does; tables inside are written inline."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
