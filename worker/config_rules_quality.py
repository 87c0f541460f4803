"""Rules of what happens under pressure: classes, late events, cold starts, segments, breaker, alarms."""

from collections import Counter
from collections.abc import Iterator

from worker.config import Config, TopicConfig
from worker.route import OWN_REASONS

type Found = tuple[str, str, str, str]
"""Key, value, problem, remedy."""

NO_FALLBACK = "there is no engine beside the primary"


def quality_rules(config: Config) -> Iterator[Found]:
    yield from _classes(config)
    yield from _breaker(config)
    yield from _alarm_topic(config)
    for topic in config.topics:
        yield from _policies(topic, config)
        yield from _segments(topic)


def _classes(config: Config) -> Iterator[Found]:
    names = Counter(item.name for item in config.classes)
    for name, times in names.items():
        if times > 1:
            yield "classes", name, f"the class stands {times} times", "keep one, or rename the others"
    for item in config.classes:
        if item.max_bytes < config.worker.max_event_bytes:
            problem = f"must be at least worker.max_event_bytes ({config.worker.max_event_bytes}), else the largest"
            yield (
                f"classes[{item.name}].max_bytes",
                str(item.max_bytes),
                f"{problem} events are always shed",
                "raise it",
            )
    for topic in config.topics:
        if topic.service_class and topic.service_class not in names:
            remedy = f"use one of {', '.join(names)}" if names else "add it as [[classes]], or remove the key"
            yield f"topics[{topic.name}].service_class", topic.service_class, "no such class", remedy


def _breaker(config: Config) -> Iterator[Found]:
    breaker = config.breaker
    if breaker.max_open_ms < breaker.open_ms:
        problem = f"must be at least breaker.open_ms ({breaker.open_ms}), of which it bounds the doubling"
        yield "breaker.max_open_ms", str(breaker.max_open_ms), problem, "raise it or lower open_ms"


def _alarm_topic(config: Config) -> Iterator[Found]:
    name = config.alarms.topic
    for topic in config.topics:
        for use, other in (("events", topic.name), ("scores", topic.scores), ("dead letters", topic.dead_letters)):
            if name == other:
                yield "alarms.topic", name, f"holds the {use} of {topic.name}", "use a topic of its own"


def _policies(topic: TopicConfig, config: Config) -> Iterator[Found]:
    key = f"topics[{topic.name}]"
    above = topic.primary_above_ms
    if not topic.fallback:
        for field in ("late", "cold_start"):
            if getattr(topic, field) == "light":
                yield f"{key}.{field}", "light", NO_FALLBACK, f"add one to fallback, or choose another {field}"
        if not isinstance(above, str) and above > 0:
            yield f"{key}.primary_above_ms", f"{above:g}", NO_FALLBACK, "add one to fallback, or remove the key"
        shedding = [item.name for item in config.classes if item.shed == "light"]
        if shedding:
            problem = f"{NO_FALLBACK} to score what the classes {', '.join(shedding)} shed"
            yield f"{key}.fallback", "[]", problem, 'add "light", or set their shed to "skip" or "dead_letter"'
    if not isinstance(above, str) and above >= topic.budget_ms:
        problem = f"must be below budget_ms ({topic.budget_ms:g}), else the primary engine never scores"
        yield f"{key}.primary_above_ms", f"{above:g}", problem, "lower it or raise budget_ms"


def _segments(topic: TopicConfig) -> Iterator[Found]:
    key = f"topics[{topic.name}].segments"
    for name, times in Counter(segment.name for segment in topic.segments).items():
        if times > 1:
            yield key, name, f"the segment stands {times} times", "keep one, or rename the others"
    for segment in topic.segments:
        if segment.name in OWN_REASONS:
            problem = "is what the reasons of late and shed events and of segments begin with"
            yield f"{key}[{segment.name}].name", segment.name, problem, "use another name"
        if bool(segment.values) == bool(segment.fewer_than):
            problem = "values and fewer_than are both given" if segment.values else "neither values nor fewer_than"
            yield f"{key}[{segment.name}]", "", problem, "give exactly one: ids, or the number of events of a long tail"
