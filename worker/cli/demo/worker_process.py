"""The worker of the demo: a real `scorelane run` with a configuration of its own."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from worker.embedded import free_port
from worker.errors import WorkerError
from worker.tether import Tether

READY_TIMEOUT_S = 60.0
DRAIN_TIMEOUT_S = 20.0
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Samples = list[tuple[str, dict[str, str], float]]


class WorkerProcess:
    """A context manager: the worker ends with it, by SIGTERM, or SIGKILL when that takes too long."""

    def __init__(self, config: dict[str, Any], directory: Path) -> None:
        self.port = free_port()
        self.config = directory / "worker.toml"
        self.config.write_text(to_toml(config | {"admin": {"port": self.port}}))
        self._log = directory / "worker.log"
        self._tether = Tether()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                self._tether.command([sys.executable, "-P", "-m", "worker.cli", "run", "--config", str(self.config)]),
                stdin=self._tether.stdin,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._tether.attached()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    async def ready(self, stop: asyncio.Event) -> None:
        """Wait until it has partitions. Raises `WorkerError` with its last words when it ends or takes too long."""
        until = time.monotonic() + READY_TIMEOUT_S
        while not stop.is_set():
            status, _ = await self.get("/readyz")
            if status == 200:
                return
            ended = self.process.poll()
            if ended is not None or time.monotonic() > until:
                what = "is not ready" if ended is None else f"ended with {ended}"
                raise WorkerError(f"the worker {what}: {self.last_words()}")
            await asyncio.sleep(0.1)

    async def get(self, path: str) -> tuple[int, str]:
        """(status, body) of an admin page; status 0 when it does not answer."""
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
                writer.close()
        except (OSError, TimeoutError):
            return 0, ""
        return (int(head.split()[1]), body) if head else (0, "")

    async def metrics(self) -> Samples:
        """(name, labels, value) of every sample, none when it does not answer."""
        _, body = await self.get("/metrics")
        return [(name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in _SAMPLE.findall(body)]

    def stop(self) -> int:
        """Drain and end; the exit code. Idempotent."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DRAIN_TIMEOUT_S)
            except BaseException:
                self.process.kill()
                self.process.wait()
                raise
            finally:
                self._tether.release()
        self._tether.release()
        return self.process.returncode

    def last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:]) or "it said nothing"


def to_toml(config: dict[str, Any]) -> str:
    """Tables and lists of tables. JSON writes strings, numbers, booleans and lists as TOML does."""
    lines: list[str] = []
    for name, value in config.items():
        for header, table in [(f"[{name}]", value)] if isinstance(value, dict) else [(f"[[{name}]]", t) for t in value]:
            lines += [header, *(f"{key} = {json.dumps(item)}" for key, item in table.items())]
    return "\n".join(lines) + "\n"
