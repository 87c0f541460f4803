"""The worker's configuration: one TOML file, each section a frozen struct, each key documented where it is declared.

    config = Config.load(Path("worker.toml"), os.environ)

Relative paths (models, certificates, secrets) are relative to the file and absolute after loading. Every key of
`[kafka]`, `[worker]` and `[admin]` can be overridden by the environment: `SCORELANE_<SECTION>_<KEY>`, for example
`SCORELANE_KAFKA_BOOTSTRAP_SERVERS=broker:9092`. `deploy/worker.toml` shows every key with its default.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta

from engines import EngineKind
from schemas.wire import Format
from worker.config_quality import (
    TOPIC_FORM,
    AlarmConfig,
    BreakerConfig,
    ClassConfig,
    Milliseconds,
    OptionalTopic,
    SegmentConfig,
)
from worker.deadline import DeadlineBase, EventDeadline
from worker.route import LatePolicy

Positive = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
TopicName = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}$", description=TOPIC_FORM)]
Servers = Annotated[
    str,
    Meta(
        pattern=r"^\s*[^\s,:/][^\s/]*:\d{1,5}(\s*,\s*[^\s,:/][^\s/]*:\d{1,5})*\s*$",
        description="host:port, several separated by commas, without a scheme such as kafka://",
    ),
]
SECRETS = frozenset({"ssl_password", "sasl_password"})
"""Keys whose values are never printed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to mend. `source` is the file or "environment", `key` dotted or the variable's name."""

    source: str
    key: str
    value: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        where = [part for part in (self.source, self.key, self.value) if part]
        return f"{': '.join(where)}: {self.problem}; {self.remedy}"


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds all of them, the message has one a line."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class KafkaConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[kafka]: the brokers, the group, security and the client's timing. Passed to aiokafka."""

    bootstrap_servers: Servers
    """Brokers to ask first, "host:port" separated by commas. Required."""
    group_id: Annotated[str, Meta(min_length=1)] = "scorelane"
    """Consumer group. All members of one group share the partitions."""
    client_id: str = "scorelane"
    """Name in the brokers' logs and quotas."""
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    """Where a group without committed offsets begins. One whose offset was deleted goes on at the earliest."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Whether events of aborted transactions are scored too, and open ones are not waited for; or neither."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """How to talk to the brokers. TLS with *SSL, a login with SASL_*."""
    ssl_cafile: str = ""
    """PEM file of the authorities that sign the brokers' certificates. Empty: the system's."""
    ssl_certfile: str = ""
    """PEM file of the client's certificate, for mutual TLS."""
    ssl_keyfile: str = ""
    """PEM file of the client's key. Empty: it is in `ssl_certfile`."""
    ssl_password: str = ""
    """Password of the key. Better in the environment, SCORELANE_KAFKA_SSL_PASSWORD."""
    ssl_check_hostname: bool = True
    """Whether a broker's certificate must name the host. Turn off only in tests."""
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", ""] = ""
    """How to log in, with SASL_PLAINTEXT or SASL_SSL."""
    sasl_username: str = ""
    """User of PLAIN and SCRAM."""
    sasl_password: str = ""
    """Password of PLAIN and SCRAM. Better in the environment or in `sasl_password_file`."""
    sasl_password_file: str = ""
    """File with the password, one trailing line end is ignored."""
    sasl_token_file: str = ""
    """File with the bearer token of OAUTHBEARER; read again at each connection, so that it can be rotated."""
    group_instance_id: str = ""
    """Name of this member that outlives it, unlike every other's; with --processes a number is appended. A member that
    is back within `session_timeout_ms` takes up its partitions, and the others go on meanwhile. Without one each start
    and stop is a rebalance, and the one after a crash waits for `session_timeout_ms`."""
    session_timeout_ms: Milliseconds = 30_000
    """Silence after which the group gives a member's partitions to others. While it waits for that, a rebalance stops
    all."""
    heartbeat_interval_ms: Milliseconds = 3_000
    """Time between signs of life; below a third of `session_timeout_ms`."""
    rebalance_timeout_ms: Milliseconds = 30_000
    """Time for all members to give up their partitions; more than 10 s above `worker.drain_timeout_ms`,
    which the last commits come after."""
    request_timeout_ms: Milliseconds = 60_000
    """Time for one request; above `rebalance_timeout_ms`, since a join waits for all members."""
    fetch_max_wait_ms: Annotated[int, Meta(ge=1, le=10_000)] = 20
    """How long a broker holds back an empty answer. Higher costs less when idle and delays skewed partitions."""
    fetch_linger_ms: Annotated[int, Meta(ge=0, le=10_000)] = 5
    """How long a broker gathers records for one answer while they flow; at most a tenth of the smallest `budget_ms`.
    Fewer requests for the brokers; a backlog and what comes one by one are not held back. 0: nothing is."""
    fetch_max_bytes: Positive = 16 << 20
    """Bytes of one answer of one broker."""
    max_partition_fetch_bytes: Positive = 1 << 20
    """Bytes of one partition in one answer; prefetched memory is this times the partitions."""
    metadata_max_age_ms: Milliseconds = 60_000
    """How often topics and leaders are looked up again."""
    check_crcs: bool = True
    """Verify checksums of records: 0.1 us a record of 200 bytes, 2 us at 4 KB."""

    def client_args(self) -> dict[str, Any]:
        """Keyword arguments common to aiokafka's consumer, producer and admin client: brokers, TLS and SASL.

        Raises `ConfigError` when a certificate or a secret's file cannot be read.
        """
        from worker.security import client_args

        return client_args(self)

    def __repr__(self) -> str:
        shown = {
            name: "***" if name in SECRETS and getattr(self, name) else getattr(self, name)
            for name in self.__struct_fields__
        }
        return f"KafkaConfig({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[topics]]: one input topic, its model and where the scores go."""

    name: TopicName
    """Topic with the events. Required."""
    model: str
    """Model package: models/<name>/<version>, or models/<name> for its newest version. Required."""
    scores: OptionalTopic = ""
    """Topic for the scores; it needs at least as many partitions as `name`. Default: <name>.scores."""
    dead_letters: OptionalTopic = ""
    """Topic for records that cannot be scored; as many partitions as `name`. Default: <name>.dead."""
    format: Format = "msgpack"
    """Format of the events, fields as the model's spec says."""
    score_format: Format | Literal[""] = ""
    """Format of the scores. Default: as `format`."""
    engine: EngineKind = "ort"
    """Primary engine: trt (TensorRT, GPU), ort (ONNX Runtime, CPU), trees, light."""
    fallback: tuple[EngineKind, ...] = ("light",)
    """Engines that take over when the primary fails or is late, in this order."""
    budget_ms: Annotated[float, Meta(gt=0, le=3_600_000)] = 50.0
    """Time for an event that brings no deadline of its own."""
    deadline: DeadlineBase = "timestamp"
    """Where `budget_ms` begins: the record's timestamp, or its arrival at the worker."""
    event_deadline: EventDeadline = "absolute"
    """An event's own deadline, its field or the record header `deadline_ms` (a number as text): milliseconds since the
    epoch, milliseconds after where `budget_ms` begins, or not used. It can only shorten `budget_ms`."""
    max_batch: Annotated[int, Meta(ge=1, le=65_536)] = 256
    """Most events of one batch."""
    threads: Annotated[int, Meta(ge=1, le=256)] = 1
    """Threads of one CPU engine."""
    device: Annotated[
        str,
        Meta(
            pattern=r"^(\d{1,3}|GPU-[0-9a-fA-F-]+|MIG-[0-9a-zA-Z/-]+)$",
            description="a number, or a UUID that begins with GPU- or MIG-",
        ),
    ] = "0"
    """GPU of engine trt: its index, UUID (GPU-...) or MIG slice (MIG-...). Several workers may share one."""
    primary_above_ms: Annotated[float, Meta(ge=0)] | Literal["predicted"] = "predicted"
    """Remaining budget that an event must have for the primary engine; with less the next engine scores it at once.
    "predicted": what the batch is expected to take. 0: always the primary first. Below `budget_ms`."""
    late: LatePolicy = "score"
    """Events that are past their deadline when they are reached: scored all the same, scored by the last engine of
    `fallback`, published without a score, or dead-lettered. The last two also when no engine can make it in time."""
    service_class: str = ""
    """Class of events whose record has no header `class` with a known name; one of [[classes]]. Default: the first."""
    cold_start: Literal["wait", "light"] = "wait"
    """Until the primary engine is loaded and warm: not ready, or ready with the engines of `fallback`
    answering."""
    segments: tuple[SegmentConfig, ...] = ()
    """[[topics.segments]] tables: groups of events with models of their own."""

    @property
    def kinds(self) -> tuple[EngineKind, ...]:
        """Every engine that it names, each once: the primary, its fallbacks, the segments' own."""
        return tuple(dict.fromkeys((self.engine, *self.fallback, *(segment.engine for segment in self.segments))))

    def __post_init__(self) -> None:
        for field, default in (
            ("scores", f"{self.name}.scores"),
            ("dead_letters", f"{self.name}.dead"),
            ("score_format", self.format),
        ):
            if not getattr(self, field):
                msgspec.structs.force_setattr(self, field, default)


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[worker]: bounds and times of the path from a record to its score."""

    lanes: Annotated[int, Meta(ge=1, le=256)] = 4
    """Most lanes of one topic; a lane is one execution session and the partitions bound to it."""
    inbox_bytes: Positive = 8 << 20
    """Bytes waiting in one lane; above, its partitions are not polled."""
    inbox_rows: Positive = 16_384
    """Events waiting in one lane; above, its partitions are not polled. With [[classes]] the lowest class is shed from
    half of it on, so that it does not hold up the others in Kafka."""
    max_event_bytes: Positive = 1 << 20
    """A larger record becomes a dead letter."""
    commit_interval_ms: Milliseconds = 200
    """Time between commits of offsets whose scores are acknowledged."""
    max_weights_bytes: Annotated[int, Meta(ge=0)] = 0
    """Device memory for the weights of all engines of a process together, beside their sessions' buffers; more is an
    error at the start. 0: what the devices have."""
    lock_memory: bool = False
    """Keep every page that is touched in memory (mlockall), so that no batch waits for one to be read from disk. Needs
    the right to do so: `ulimit -l unlimited`, or the capability IPC_LOCK."""
    drain_timeout_ms: Milliseconds = 10_000
    """Time to finish what was taken in, at a stop and when partitions are given up."""
    publish_timeout_ms: Milliseconds = 30_000
    """Time for the brokers to acknowledge a batch of scores."""
    stall_timeout_ms: Milliseconds = 60_000
    """No progress for so long while records wait: the process ends, to be started again."""
    dead_letter_max_bytes: Positive = 900_000
    """Larger values are cut in the dead letter, with their digest; the original stays at its offset."""
    compression: Literal["none", "zstd", "snappy"] = "none"
    """Compression of scores and dead letters."""


class AdminConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[admin]: /healthz, /readyz and /metrics over HTTP."""

    host: str = "127.0.0.1"
    """Address to listen on; "0.0.0.0" in a container."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """Port; 0 takes any free one. Member i of --processes listens on port + i."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    kafka: KafkaConfig
    topics: tuple[TopicConfig, ...]
    worker: WorkerConfig = WorkerConfig()
    classes: tuple[ClassConfig, ...] = ()
    breaker: BreakerConfig = BreakerConfig()
    alarms: AlarmConfig = AlarmConfig()
    admin: AdminConfig = AdminConfig()

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str]) -> Self:
        """Read and check `path` with the overrides of `environ`.

        Raises `ConfigError` with all problems: syntax, unknown keys, values, and values that do not fit together.
        Does not open models, files or connections.
        """
        from worker.config_load import load

        return load(cls, path, environ)
