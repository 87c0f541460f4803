"""What values must satisfy together. Each rule returns (key, value, problem, remedy) for what breaks it."""

from collections import Counter
from collections.abc import Iterator

from worker.committer import COMMIT_TIMEOUT_S
from worker.config import Config, KafkaConfig, TopicConfig
from worker.config_rules_quality import Found, quality_rules


def rules(config: Config) -> Iterator[Found]:
    """Everything in `config` that does not fit together."""
    yield from _servers(config.kafka)
    yield from _times(config)
    yield from _bytes(config)
    yield from _tls(config.kafka)
    yield from _sasl(config.kafka)
    yield from _topics(config)
    for topic in config.topics:
        yield from _engines(topic)
    yield from quality_rules(config)


def _below(config: Config, low: str, high: str, why: str, *, equal: bool = False) -> Iterator[Found]:
    left, right = (_get(config, key) for key in (low, high))
    if left > right or (left == right and not equal):
        sign = "at most" if equal else "below"
        yield low, str(left), f"must be {sign} {high} ({right}), {why}", "lower the first or raise the second"


def _get(config: Config, key: str) -> int:
    section, _, name = key.partition(".")
    return int(getattr(getattr(config, section), name))


def _servers(kafka: KafkaConfig) -> Iterator[Found]:
    for server in kafka.bootstrap_servers.split(","):
        if not 0 < int(server.strip().rpartition(":")[2]) < 1 << 16:
            yield "kafka.bootstrap_servers", repr(server.strip()), "not a port", "give one from 1 to 65535"


def _times(config: Config) -> Iterator[Found]:
    kafka = config.kafka
    drain_ms, rebalance_ms = config.worker.drain_timeout_ms, kafka.rebalance_timeout_ms
    # A commit may be on its way when the drain ends; the last one comes after it.
    commits_ms = round(2 * COMMIT_TIMEOUT_S * 1000)
    if drain_ms + commits_ms >= rebalance_ms:
        problem = f"must be more than {commits_ms} below kafka.rebalance_timeout_ms ({rebalance_ms})"
        problem += ", so that a drain and its last commits end before the group goes on without this member"
        yield "worker.drain_timeout_ms", str(drain_ms), problem, "lower the first or raise the second"
    join = "since a join is answered only when all members came"
    yield from _below(config, "kafka.rebalance_timeout_ms", "kafka.request_timeout_ms", join)
    if kafka.heartbeat_interval_ms * 3 >= kafka.session_timeout_ms:
        limit = f"must be below a third of kafka.session_timeout_ms ({kafka.session_timeout_ms})"
        yield "kafka.heartbeat_interval_ms", str(kafka.heartbeat_interval_ms), limit, "lower it"
    commit = "so that a drain has time for the last commit"
    yield from _below(config, "worker.commit_interval_ms", "worker.drain_timeout_ms", commit)
    stall = "else a slow broker looks like a stall"
    yield from _below(config, "worker.publish_timeout_ms", "worker.stall_timeout_ms", stall)


def _bytes(config: Config) -> Iterator[Found]:
    whole = "so that one answer holds the largest event"
    yield from _below(config, "worker.max_event_bytes", "kafka.max_partition_fetch_bytes", whole, equal=True)
    part = "since it is a part of it"
    yield from _below(config, "kafka.max_partition_fetch_bytes", "kafka.fetch_max_bytes", part, equal=True)
    room = "so that a lane holds the largest event"
    yield from _below(config, "worker.max_event_bytes", "worker.inbox_bytes", room, equal=True)
    for topic in config.topics:
        if topic.max_batch > config.worker.inbox_rows:
            problem = f"must be at most worker.inbox_rows ({config.worker.inbox_rows}), else no batch is ever full"
            yield f"topics[{topic.name}].max_batch", str(topic.max_batch), problem, "lower it or raise inbox_rows"


def _tls(kafka: KafkaConfig) -> Iterator[Found]:
    if "SSL" not in kafka.security_protocol:
        for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            if value := getattr(kafka, key):
                problem = f"not used with security_protocol {kafka.security_protocol}"
                yield f"kafka.{key}", value, problem, 'set security_protocol = "SSL" or "SASL_SSL", or remove it'
    if kafka.ssl_keyfile and not kafka.ssl_certfile:
        yield "kafka.ssl_keyfile", kafka.ssl_keyfile, "a key without its certificate", "add ssl_certfile"


def _sasl(kafka: KafkaConfig) -> Iterator[Found]:
    mechanism = kafka.sasl_mechanism
    if not kafka.security_protocol.startswith("SASL"):
        if mechanism:
            problem = f"not used with security_protocol {kafka.security_protocol}"
            yield "kafka.sasl_mechanism", mechanism, problem, 'set security_protocol = "SASL_SSL", or remove it'
        return
    if not mechanism:
        problem = f"missing with security_protocol {kafka.security_protocol}"
        yield "kafka.sasl_mechanism", "", problem, "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"
    elif mechanism == "OAUTHBEARER":
        if not kafka.sasl_token_file:
            yield "kafka.sasl_token_file", "", "missing with OAUTHBEARER", "name the file that holds the token"
    else:
        if not kafka.sasl_username:
            yield "kafka.sasl_username", "", f"missing with {mechanism}", "add it"
        if bool(kafka.sasl_password) == bool(kafka.sasl_password_file):
            problem = "given twice, with sasl_password_file" if kafka.sasl_password else f"missing with {mechanism}"
            yield "kafka.sasl_password", "", problem, "give either sasl_password or sasl_password_file"


def _topics(config: Config) -> Iterator[Found]:
    inputs = Counter(topic.name for topic in config.topics)
    for name, times in inputs.items():
        if times > 1:
            yield "topics", name, f"the topic stands {times} times", "keep one; a topic has one model"
    formats: dict[str, str] = {}
    dead = {topic.dead_letters for topic in config.topics}
    for topic in config.topics:
        key = f"topics[{topic.name}]"
        for field in ("scores", "dead_letters"):
            output = getattr(topic, field)
            if output in inputs:
                yield f"{key}.{field}", output, "is an input topic too, its records would come back", "use another"
        if topic.scores in dead:
            yield f"{key}.scores", topic.scores, "scores and dead letters in one topic", "use two topics"
        if formats.setdefault(topic.scores, topic.score_format) != topic.score_format:
            problem = f"scores in {topic.score_format} and {formats[topic.scores]} in one topic"
            yield f"{key}.scores", topic.scores, problem, "use two topics or one score_format"


def _engines(topic: TopicConfig) -> Iterator[Found]:
    repeated = [engine for engine, times in Counter((topic.engine, *topic.fallback)).items() if times > 1]
    for engine in repeated:
        problem = "the same engine twice would fail twice"
        yield f"topics[{topic.name}].fallback", engine, problem, "name each engine once, the primary not at all"
