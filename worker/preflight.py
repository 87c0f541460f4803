"""What a configuration names beside itself: model packages, secrets, and on request the topics of the broker.

Engines are loaded as the worker does it, but for those of a GPU, which this machine need not have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines import load
from engines.errors import LoadError
from engines.package import Package
from engines.plans import found
from worker.config import Config, ConfigError, Problem, TopicConfig
from worker.segments import misfits

NEEDS = {"ort": "model.onnx", "light": "light.npz", "trees": "trees.onnx", "trt": "model.onnx"}
"""Engine -> the file that it reads from a package."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The verified packages and everything that is wrong."""

    packages: Mapping[str, Package]
    """By topic; the segments' by "<topic>.<segment>"."""
    problems: list[Problem]


def check_files(config: Config, source: str) -> Checked:
    """Open every model with its digests verified, load its engines, and read everything that security needs.

    `source` names the file.
    """
    problems: list[Problem] = []
    for secrets in (config.kafka.client_args, config.alarms.webhook_tokens):
        try:
            secrets()
        except ConfigError as error:
            problems += [Problem(source, p.key, p.value, p.problem, p.remedy) for p in error.problems]
    packages: dict[str, Package] = {}
    loads = Loads()
    for topic in config.topics:
        key = f"topics[{topic.name}]"
        whole = _open(topic.model, key, source, problems)
        if whole is not None:
            packages[topic.name] = whole
            for field, engines in (("engine", (topic.engine,)), ("fallback", topic.fallback)):
                problems += _engines(engines, whole, f"{key}.{field}", source, topic, loads)
        for segment in topic.segments:
            inner = f"{key}.segments[{segment.name}]"
            own = _open(segment.model, inner, source, problems)
            if own is not None:
                packages[f"{topic.name}.{segment.name}"] = own
                problems += _engines((segment.engine,), own, f"{inner}.engine", source, topic, loads)
            if whole is not None and own is not None:
                for field, *rest in misfits(segment, whole.spec, own.spec):
                    problems.append(Problem(source, f"{inner}.{field}", *rest))
    return Checked(packages, problems)


def check_package(package: Package) -> None:
    """Open the tables and load every engine that the package has, but those of a GPU. Raises `LoadError`."""
    package.open_tables()
    for engine in (*NEEDS, "constant"):
        if engine != "trt" and not _lack(engine, package):
            load(engine, package).close()


def named_topics(config: Config) -> dict[str, str]:
    """Every topic that the configuration names -> the key that names it first."""
    named: dict[str, str] = {}
    for topic in config.topics:
        for field in ("name", "scores", "dead_letters"):
            named.setdefault(getattr(topic, field), f"topics[{topic.name}].{field}")
    if config.alarms.topic:
        named.setdefault(config.alarms.topic, "alarms.topic")
    return named


def missing_topics(config: Config, there: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Topic that is not there -> the partitions that it needs: `partitions` for events, for what comes of them as many
    as the events have, one for alarms."""
    missing: dict[str, int] = {}
    for topic in config.topics:
        count = there.get(topic.name, partitions)
        for name in {topic.name, topic.scores, topic.dead_letters} - there.keys():
            missing[name] = max(count, missing.get(name, 1))
    return {name: missing.get(name, 1) for name in named_topics(config) if name not in there}


def check_topics(config: Config, source: str, partitions: Mapping[str, int]) -> list[Problem]:
    """Compare the configuration with the broker's topics and their numbers of partitions.

    Scores and dead letters go to the partition of their event, so that each needs as many partitions.
    """
    problems: list[Problem] = []
    create = "create it with `scorelane topics`"
    alarms = config.alarms.topic
    if alarms and alarms not in partitions:
        problems.append(Problem(source, "alarms.topic", alarms, "no such topic", f"{create} (1 partition)"))
    for topic in config.topics:
        key = f"topics[{topic.name}]"
        count = partitions.get(topic.name)
        if count is None:
            problems.append(Problem(source, f"{key}.name", topic.name, "no such topic", f"{create}, or mend the name"))
        for field in ("scores", "dead_letters"):
            output = getattr(topic, field)
            found = partitions.get(output)
            if found is None:
                needs = f"{count or 'as many'} partitions" + ("" if count else " as the input")
                problems.append(Problem(source, f"{key}.{field}", output, "no such topic", f"{create} ({needs})"))
            elif count is not None and found < count:
                problem = f"{found} partitions, the input {topic.name} has {count}"
                problems.append(Problem(source, f"{key}.{field}", output, problem, f"add partitions up to {count}"))
    return problems


def _open(model: str, key: str, source: str, problems: list[Problem]) -> Package | None:
    try:
        package = Package.open(Path(model))
        package.open_tables()
        return package
    except LoadError as error:
        problem, _, remedy = str(error).removeprefix(f"{model}: ").rpartition("; ")
        problems.append(Problem(source, f"{key}.model", model, problem, remedy))
        return None


class Loads:
    """Engines of packages, each loaded and closed once."""

    def __init__(self) -> None:
        self._errors: dict[tuple[str, str, int, int], LoadError | None] = {}

    def error(self, engine: str, package: Package, topic: TopicConfig) -> LoadError | None:
        """Why the engine cannot be loaded with the topic's options."""
        key = (engine, str(package.path), topic.max_batch, topic.threads)
        if key not in self._errors:
            try:
                load(engine, package, threads=topic.threads, max_batch=topic.max_batch).close()
            except LoadError as error:
                self._errors[key] = error
            else:
                self._errors[key] = None
        return self._errors[key]


def _engines(
    engines: Sequence[str], package: Package, key: str, source: str, topic: TopicConfig, loads: Loads
) -> list[Problem]:
    problems = []
    lacks = {engine: _lack(engine, package) for engine in (*NEEDS, "constant")}
    for engine in engines:
        if lack := lacks[engine]:
            known = ", ".join(name for name in lacks if not lacks[name] and name not in engines)
            problem = f"the package {package.name} {package.version} has no {lack}"
            remedy = f"use one of {known}, or train the model with it" if known else "train the model again"
            problems.append(Problem(source, key, engine, problem, remedy))
        elif engine == "trt":
            if why := _no_plan(package):
                remedy = f"scorelane engine build {package.path} --precision fp32 on the GPU machine"
                problems.append(Problem(source, key, engine, why, remedy))
        elif error := loads.error(engine, package, topic):
            problem, _, remedy = str(error).rpartition("; ")
            problems.append(Problem(source, key, engine, problem, remedy))
    return problems


def _no_plan(package: Package) -> str:
    """Why TensorRT has nothing to run on any machine; empty where a plan of this model was accepted.

    Whether the plan fits the GPU and the TensorRT that the worker finds only shows there.
    """
    try:
        plans = found(package.path)
    except LoadError as error:
        return f"no plan can be read: {error}"
    onnx = package.manifest.files.get(NEEDS["trt"])
    fit = [plan.record for plan in plans if plan.record.onnx_sha256 == onnx]
    if any(record.accepted for record in fit):
        return ""
    there = {f"{record.precision} {'rejected' if record.judged_ms else 'not judged'}" for record in fit}
    if len(fit) < len(plans):
        there.add(f"{len(plans) - len(fit)} of another {NEEDS['trt']}")
    return f"no accepted plan (there are: {', '.join(sorted(there)) or 'none'})"


def _lack(engine: str, package: Package) -> str:
    """What the engine needs of the package and does not find there; empty when it has all."""
    if engine == "constant":
        return "" if isinstance(package.manifest.metrics.get("base_rate"), int | float) else "metric base_rate"
    return "" if package.has(NEEDS[engine]) else NEEDS[engine]
