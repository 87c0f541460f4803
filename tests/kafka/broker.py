"""A real Apache Kafka for tests: one KRaft node, random ports, its data in a directory of its own."""

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.kafka.jars import classpath
from tests.kafka.process import Process, free_port, wait_until

_CLUSTER_ID = "c2NvcmVsYW5lLXRlc3RzAA"


class Broker:
    """start / stop / kill / restart keep the ports and the data; `close` kills and deletes everything.

    `heap_mb` bounds the Java heap. `cpus` pins the broker to these CPUs. `quick_start` compiles less: it starts sooner
    and runs slower. `settings` override server properties.
    """

    def __init__(
        self,
        *,
        heap_mb: int = 512,
        cpus: str | None = None,
        quick_start: bool = True,
        settings: dict[str, str | int] | None = None,
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="scorelane-kafka-"))
        pin = ["taskset", "-c", cpus] if cpus else []
        self._command = [*pin, *_java(heap_mb, quick_start)]
        self.port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._properties = self._directory / "server.properties"
        values = _settings(self.port, controller, self._directory / "data") | (settings or {})
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self._process: Process | None = None
        try:
            self._tool("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties))
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start and wait until the broker accepts connections."""
        assert self._process is None, "already running"
        command = [*self._command, "kafka.Kafka", str(self._properties)]
        process = self._process = Process(command, self._directory / "broker.log")

        def listening() -> bool:
            assert process.exit_code is None, f"the broker ended with {process.exit_code}:\n{process.tail()}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(listening, "the broker listens", timeout_s=90)

    def stop(self) -> None:
        """End it in order (SIGTERM)."""
        assert self._process is not None
        self._process.send(signal.SIGTERM)
        self._process.wait(60)
        self._process = None

    def kill(self) -> None:
        """End it at once (SIGKILL). Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """SIGKILL, then start on the same port with the same data."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, until `thaw`."""
        assert self._process is not None
        self._process.send(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def limit_produce(self, client_id: str, bytes_per_s: int | None) -> None:
        """Set, or with None remove, the produce quota of a client id: above it the broker stops reading from it."""
        change = ["--add-config", f"producer_byte_rate={bytes_per_s}"]
        if bytes_per_s is None:
            change = ["--delete-config", "producer_byte_rate"]
        entity = ("--entity-type", "clients", "--entity-name", client_id)
        self._tool("kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter", *entity, *change)

    def _tool(self, main: str, *arguments: str) -> None:
        command: Sequence[str] = [*_java(256, True), main, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if result.returncode != 0:
            call = f"{main} {' '.join(arguments)}"
            raise RuntimeError(f"{call}: exit code {result.returncode}\n{result.stdout}{result.stderr}")


def _java(heap_mb: int, quick_start: bool) -> list[str]:
    return [
        *("java", f"-Xmx{heap_mb}m", "-XX:+UseSerialGC", f"-XX:TieredStopAtLevel={1 if quick_start else 4}"),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *("-cp", classpath()),
    ]


def _settings(port: int, controller: int, data: Path) -> dict[str, str | int]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        # One node, and internal topics that are there at once.
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        # A killed broker is believed dead soon, so that its successor may register.
        "broker.heartbeat.interval.ms": 500,
        "broker.session.timeout.ms": 2000,
        "controlled.shutdown.enable": "false",
        # Tests write events of any age and one record of 100 MB.
        "log.retention.ms": -1,
        "socket.request.max.bytes": 160 << 20,
        # Throttling reacts within two seconds.
        "quota.window.num": 2,
        "quota.window.size.seconds": 1,
        # Small: the default of the cleaner alone takes 128 MiB of heap.
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
