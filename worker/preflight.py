"""What a configuration names beside itself: model packages, certificates, and on request the topics of the broker."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.errors import LoadError
from engines.package import Package
from worker.config import Config, ConfigError, Problem, TopicConfig

NEEDS = {"ort": "model.onnx", "light": "light.npz", "trees": "trees.onnx", "trt": "model.onnx"}
"""Engine -> the file that it reads from a package."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The verified packages, by topic, and everything that is wrong."""

    packages: Mapping[str, Package]
    problems: list[Problem]


def check_files(config: Config, source: str) -> Checked:
    """Open every model with its digests verified, and everything that security needs. `source` names the file."""
    problems: list[Problem] = []
    try:
        config.kafka.client_args()
    except ConfigError as error:
        problems += [Problem(source, found.key, found.value, found.problem, found.remedy) for found in error.problems]
    packages: dict[str, Package] = {}
    for topic in config.topics:
        try:
            packages[topic.name] = Package.open(Path(topic.model))
        except LoadError as error:
            problem, _, remedy = str(error).removeprefix(f"{topic.model}: ").rpartition("; ")
            problems.append(Problem(source, f"topics[{topic.name}].model", topic.model, problem, remedy))
        else:
            problems += _engines(topic, packages[topic.name], source)
    return Checked(packages, problems)


def check_topics(config: Config, source: str, partitions: Mapping[str, int]) -> list[Problem]:
    """Compare the configuration with the broker's topics and their numbers of partitions.

    Scores and dead letters go to the partition of their event, so that each needs as many partitions.
    """
    problems: list[Problem] = []
    for topic in config.topics:
        key = f"topics[{topic.name}]"
        count = partitions.get(topic.name)
        if count is None:
            problems.append(Problem(source, f"{key}.name", topic.name, "no such topic", "create it or mend the name"))
        for field in ("scores", "dead_letters"):
            output = getattr(topic, field)
            found = partitions.get(output)
            if found is None:
                remedy = f"create it with {count or 'as many'} partitions" + ("" if count else " as the input")
                problems.append(Problem(source, f"{key}.{field}", output, "no such topic", remedy))
            elif count is not None and found < count:
                problem = f"{found} partitions, the input {topic.name} has {count}"
                problems.append(Problem(source, f"{key}.{field}", output, problem, f"add partitions up to {count}"))
    return problems


def _engines(topic: TopicConfig, package: Package, source: str) -> list[Problem]:
    problems = []
    for field, engines in (("engine", (topic.engine,)), ("fallback", topic.fallback)):
        for engine in engines:
            file = NEEDS.get(engine)
            if file is not None and not package.has(file):
                known = ", ".join(name for name, needed in NEEDS.items() if package.has(needed))
                problem = f"the package {package.name} {package.version} has no {file}"
                remedy = f"use one of {known}, or train the model with it" if known else "train the model again"
                problems.append(Problem(source, f"topics[{topic.name}].{field}", engine, problem, remedy))
    return problems
