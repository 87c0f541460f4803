"""`scorelane topics` on a real Kafka: its default replication, its refusals, its logins and ACLs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.worker import to_toml
from tests.worker.test_cli import scorelane

pytestmark = pytest.mark.kafka


def config(folder: Path, name: str, **kafka: object) -> Path:
    path = folder / "w.toml"
    path.write_text(to_toml({"kafka": kafka, "topics": [{"name": name, "model": "models/none"}]}))
    return path


def described(client: Client, name: str) -> dict[str, list[int]]:
    """Topic -> copies of each partition, of the topics that begin with this name."""

    async def ask() -> list[dict[str, object]]:
        admin = AIOKafkaAdminClient(bootstrap_servers=client.bootstrap)
        await admin.start()
        found: list[dict[str, object]] = await admin.describe_topics()
        await admin.close()
        return found

    topics = [topic for topic in client.run(ask()) if str(topic["topic"]).startswith(name)]
    return {str(topic["topic"]): [len(one["replicas"]) for one in topic["partitions"]] for topic in topics}  # type: ignore[attr-defined]


def test_topics_have_their_partitions_and_the_brokers_replication(kafka: Client, unique: str, tmp_path: Path) -> None:
    kafka.create_topic(f"{unique}.dead", 3)
    path = config(tmp_path, unique, bootstrap_servers=kafka.bootstrap)
    ran = scorelane("topics", "--config", path, "--partitions", 3)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"{unique}: created, 3 partitions",
        f"{unique}.scores: created, 3 partitions",
        f"{unique}.dead: is there, 3 partitions",
    ]
    assert described(kafka, unique) == {unique: [1] * 3, f"{unique}.scores": [1] * 3, f"{unique}.dead": [1] * 3}


def test_each_topic_that_is_refused_has_its_remedy(kafka: Client, unique: str, tmp_path: Path) -> None:
    path = config(tmp_path, unique, bootstrap_servers=kafka.bootstrap)
    ran = scorelane("topics", "--config", path, "--replication", 9)
    assert (ran.returncode, ran.stdout) == (2, "")
    lines = [line.partition("w.toml: ")[2] for line in ran.stderr.splitlines()]
    assert [line.partition(": not created: ")[0] for line in lines] == [
        f"topics[{unique}].name: {unique}",
        f"topics[{unique}].scores: {unique}.scores",
        f"topics[{unique}].dead_letters: {unique}.dead",
    ]
    assert all("replication factor of 9" in line and line.endswith("the number of brokers") for line in lines)
    assert described(kafka, unique) == {}


def test_what_is_not_refused_is_created(kafka: Client, unique: str, tmp_path: Path) -> None:
    """In Kafka a dot and an underscore are one: of a.dead and a_dead there can be one only."""
    kafka.create_topic(f"{unique}_dead", 4)
    ran = scorelane("topics", "--config", config(tmp_path, unique, bootstrap_servers=kafka.bootstrap))
    assert ran.returncode == 2
    assert ran.stdout == f"{unique}: created, 4 partitions\n{unique}.scores: created, 4 partitions\n"
    [line] = ran.stderr.splitlines()
    assert f"{unique}.dead: not created: Topic '{unique}.dead' collides with existing topic: {unique}_dead" in line
    assert line.endswith("; give it another name")


MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
GUARDED = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{MODULE} username="ann" password="a" user_ann="a" user_bob="b";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS;User:ann",
}
"""Two users may log in, and only ann may do anything. The controller's own listener has no logins."""


@pytest.fixture
def guarded() -> Iterator[Broker]:
    broker = Broker(settings=GUARDED)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def test_logins_and_acls(guarded: Broker, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("b\n")
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "bootstrap_servers": guarded.bootstrap}
    bob = config(tmp_path, "ads", **login, sasl_username="bob", sasl_password_file="password")
    ran = scorelane("topics", "--config", bob)
    assert (ran.returncode, ran.stdout) == (1, "")
    first, *others = ran.stderr.splitlines()
    assert "topics[ads].name: ads: not created: " in first
    assert first.endswith("; the user needs the ACL Create on the topic ads or on the cluster")
    assert [
        line.endswith(f"on the topic {name} or on the cluster")
        for line, name in zip(others, ("ads.scores", "ads.dead"), strict=True)
    ] == [True, True]
    ann = config(tmp_path, "ads", **login, sasl_username="ann", sasl_password="a")
    ran = scorelane("topics", "--config", ann, "--partitions", 2)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [f"{name}: created, 2 partitions" for name in ("ads", "ads.scores", "ads.dead")]
