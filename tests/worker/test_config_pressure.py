"""Configuration of what happens under pressure: which values fit together, and what becomes of them."""

from pathlib import Path

import msgspec
import pytest

from worker.config import Config, ConfigError, TopicConfig
from worker.config_example import documentation
from worker.config_quality import AlarmConfig, BreakerConfig, ClassConfig, SegmentConfig
from worker.deadline import DEADLINE_HEADER
from worker.topic import CLASS_HEADER

KAFKA = """
[kafka]
bootstrap_servers = "localhost:9092"
"""
TOPIC = """
[[topics]]
name = "tips"
model = "models/tipping"
"""
MINIMAL = KAFKA + TOPIC
L1, L2 = ('\n[[classes]]\nname = "L1"\n', '\n[[classes]]\nname = "L2"\n')
NIGHT = '\n[[topics.segments]]\nname = "night"\nmodel = "models/night"\ntensor = "ids"\n'


def load(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "worker.toml"
    path.write_text(text)
    return Config.load(path, {})


def problems(tmp_path: Path, text: str) -> list[str]:
    """The messages, without the file."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return [str(problem).replace(f"{tmp_path}/worker.toml: ", "") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINIMAL + L1 + L2 + L1, "classes: L1: the class stands 2 times; keep one, or rename the others"),
        (
            MINIMAL + 'service_class = "L3"\n' + L1 + L2,
            "topics[tips].service_class: L3: no such class; use one of L1, L2",
        ),
        (
            MINIMAL + 'service_class = "L1"\n',
            "topics[tips].service_class: L1: no such class; add it as [[classes]], or remove the key",
        ),
        (
            MINIMAL + L1 + "max_bytes = 1000\n",
            "classes[L1].max_bytes: 1000: must be at least worker.max_event_bytes (1048576), else the largest events"
            " are always shed; raise it",
        ),
        (
            MINIMAL + NIGHT,
            "topics[tips].segments[night]: neither values nor fewer_than; give exactly one: ids, or the number of"
            " events of a long tail",
        ),
        (
            MINIMAL + NIGHT + "values = [1]\nfewer_than = 3\n",
            "topics[tips].segments[night]: values and fewer_than are both given; give exactly one: ids, or the number"
            " of events of a long tail",
        ),
        (
            MINIMAL + (NIGHT + "values = [1]\n") * 2,
            "topics[tips].segments: night: the segment stands 2 times; keep one, or rename the others",
        ),
        *(
            (
                MINIMAL + NIGHT.replace("night", name) + "values = [1]\n",
                f"topics[tips].segments[{name}].name: {name}: is what the reasons of late and shed events and of"
                " segments begin with; use another name",
            )
            for name in ("late", "shed", "segment")
        ),
        (
            MINIMAL + '[alarms]\ntopic = "tips"\n',
            "alarms.topic: tips: holds the events of tips; use a topic of its own",
        ),
        (
            MINIMAL + '[alarms]\ntopic = "tips.scores"\n',
            "alarms.topic: tips.scores: holds the scores of tips; use a topic of its own",
        ),
        (
            MINIMAL + '[alarms]\ntopic = "tips.dead"\n',
            "alarms.topic: tips.dead: holds the dead letters of tips; use a topic of its own",
        ),
        (
            MINIMAL + 'fallback = []\nlate = "light"\n',
            "topics[tips].late: light: there is no engine beside the primary; add one to fallback, or choose another"
            " late",
        ),
        (
            MINIMAL + 'fallback = []\ncold_start = "light"\n',
            "topics[tips].cold_start: light: there is no engine beside the primary; add one to fallback, or choose"
            " another cold_start",
        ),
        (
            MINIMAL + "fallback = []\nprimary_above_ms = 5\n",
            "topics[tips].primary_above_ms: 5: there is no engine beside the primary; add one to fallback, or remove"
            " the key",
        ),
        (
            MINIMAL + "fallback = []\n" + L1 + L2 + 'shed = "skip"\n',
            "topics[tips].fallback: []: there is no engine beside the primary to score what the classes L1 shed; add"
            ' "light", or set their shed to "skip" or "dead_letter"',
        ),
        (
            MINIMAL + "primary_above_ms = 50\n",
            "topics[tips].primary_above_ms: 50: must be below budget_ms (50), else the primary engine never scores;"
            " lower it or raise budget_ms",
        ),
        (
            MINIMAL + "[breaker]\nopen_ms = 1001\n",
            "breaker.max_open_ms: 1000: must be at least breaker.open_ms (1001), of which it bounds the doubling;"
            " raise it or lower open_ms",
        ),
    ],
)
def test_values_that_do_not_fit_together(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL + 'service_class = "L2"\n' + L1 + L2,
        MINIMAL + 'late = "light"\ncold_start = "light"\nprimary_above_ms = 49.9\n' + L1,
        MINIMAL + 'fallback = []\nlate = "skip"\nprimary_above_ms = 0\n' + L1 + 'shed = "dead_letter"\n',
        MINIMAL + NIGHT + "fewer_than = 3\n" + NIGHT.replace("night", "day") + "values = [0]\n",
        MINIMAL + "[breaker]\nopen_ms = 1000\n",
        MINIMAL + '[alarms]\ntopic = "alarms"\n',
    ],
)
def test_values_that_do(tmp_path: Path, text: str) -> None:
    load(tmp_path, text)


def test_two_topics_may_have_segments_of_one_name(tmp_path: Path) -> None:
    load(tmp_path, MINIMAL + NIGHT + "values = [1]\n" + TOPIC.replace("tips", "ads") + NIGHT + "values = [1]\n")


def test_paths_are_relative_to_the_file_inside_tables_too(tmp_path: Path) -> None:
    config = load(tmp_path, MINIMAL + NIGHT + 'values = [1]\n[alarms]\nwebhook_token_file = "token"\n')
    assert config.topics[0].segments[0].model == str(tmp_path / "models/night")
    assert config.alarms.webhook_token_file == str(tmp_path / "token")


@pytest.mark.parametrize("struct", [ClassConfig, BreakerConfig, AlarmConfig, SegmentConfig])
def test_every_key_is_documented(struct: type[msgspec.Struct]) -> None:
    documented = documentation(struct)
    assert list(documented) == [field.name for field in msgspec.structs.fields(struct)]
    assert all(text.endswith(".") for text in documented.values())


def test_the_record_headers_are_documented() -> None:
    documented = documentation(TopicConfig)
    assert f"header `{DEADLINE_HEADER}`" in documented["event_deadline"]
    assert f"header `{CLASS_HEADER}`" in documented["service_class"]
    assert f"header `{CLASS_HEADER}`" in documentation(ClassConfig)["name"]


def test_policies_are_in_seconds() -> None:
    policy = ClassConfig(name="L1", timeout_ms=250, aging_ms=500, quota=0.0).policy()
    assert (policy.timeout_s, policy.aging_s, policy.quota) == (0.25, 0.5, float("inf"))
    assert ClassConfig(name="L1", quota=10.0).policy().quota == 10.0
    breaker = BreakerConfig(open_ms=100, max_open_ms=800, calm_ms=5000, window_ms=2000)
    short, long = breaker.policy(budget_s=0.004), breaker.policy(budget_s=0.1)
    assert (short.open_s, short.max_open_s, short.calm_s, short.window_s) == (0.1, 0.8, 5.0, 2.0)
    assert (short.never_slow_s, long.never_slow_s) == (0.010, 0.05), "half of the budget, at least 10 ms"
    alarms = AlarmConfig(window_ms=500, queue_age_ms=40, raise_ms=30, clear_ms=20).policy()
    assert (alarms.window_s, alarms.queue_age_s, alarms.raise_s, alarms.clear_s) == (0.5, 0.04, 0.03, 0.02)


def test_a_segments_rule() -> None:
    by_ids = SegmentConfig(name="night", model="m", tensor="ids", column=2, values=(3, 5), engine="ort").rule()
    assert (by_ids.name, by_ids.engine, by_ids.tensor, by_ids.column) == ("night", "night:ort", "ids", 2)
    assert (by_ids.values, by_ids.fewer_than) == (frozenset({3, 5}), None)
    tail = SegmentConfig(name="tail", model="m", tensor="ids", fewer_than=3).rule()
    assert (tail.values, tail.fewer_than) == (None, 3)


def test_the_webhooks_token(tmp_path: Path) -> None:
    assert AlarmConfig().webhook_tokens() == []
    file = tmp_path / "token"
    file.write_text(" secret\n")
    alarms = AlarmConfig(webhook_token_file=str(file))
    assert alarms.webhook_tokens() == ["secret"]
    file.write_text("\n")
    with pytest.raises(ConfigError, match=r"alarms\.webhook_token_file: .*: the file is empty; write the token into"):
        alarms.webhook_tokens()
    file.unlink()
    with pytest.raises(ConfigError, match=r"alarms\.webhook_token_file: .*: No such file or directory; name a file"):
        alarms.webhook_tokens()
