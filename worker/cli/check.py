"""scorelane check"""

import os
from pathlib import Path

import click

from worker.cli.client import config_option, partitions, quiet, table_width
from worker.config import Config, ConfigError, TopicConfig
from worker.errors import BrokerUnreachable


@click.command()
@config_option
@click.option("--connect", is_flag=True, help="Also ask the brokers: do the topics exist, are their partitions enough?")
@click.option("--example", is_flag=True, help="Print a commented configuration with every key and its default.")
def check(config_path: Path | None, connect: bool, example: bool) -> int:
    """Validate a configuration and everything it names, and show what would run.

    Checked are the TOML, keys, values and how they fit together, the environment's overrides (SCORELANE_...), model
    packages with their digests (also those of segments), certificates and secrets. Engines are loaded as `run` does
    it, except trt: of that it is checked that there is an accepted plan. Every problem is one line:

        file: key: value: problem; remedy

    Exit code 0 when all is well, else 2 (1 when with --connect no broker answers).
    """
    if example:
        from worker.config_example import example as text

        click.echo(text(), nl=False)
        return 0
    from worker.preflight import check_files, check_topics, named_topics

    if config_path is None:
        raise click.UsageError("give --config FILE; --example prints one")
    source = str(config_path)
    config = Config.load(config_path, os.environ)
    checked = check_files(config, source)
    problems = list(checked.problems)
    unreachable: BrokerUnreachable | None = None
    there: dict[str, int] | None = None
    # Without its certificates the connection would only fail a second time.
    if connect and not any(problem.key.startswith("kafka.") for problem in problems):
        from worker.cli.loop import run

        quiet()
        try:
            there = run(partitions(config.kafka.client_args()))
            problems += check_topics(config, source, there)
        except BrokerUnreachable as error:
            unreachable = error
    if problems:
        raise ConfigError(problems)
    if unreachable:
        raise unreachable
    _show(config, {name: f"{package.name} {package.version}" for name, package in checked.packages.items()})
    if there is not None:
        click.echo(
            f"{len(named_topics(config))} topics found at {config.kafka.bootstrap_servers}, with partitions enough"
        )
    return 0


LATE = {"score": "score", "light": "last engine", "skip": "skip", "dead_letter": "dead letter"}


def _show(config: Config, models: dict[str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("events", "model", "engines", "class", "budget", "late", "batch", "scores", "dead letters"):
        table.add_column(column, overflow="fold")
    for topic in config.topics:
        table.add_row(
            f"{topic.name} ({topic.format})",
            models[topic.name],
            _engines(topic),
            topic.service_class or (config.classes[0].name if config.classes else "-"),
            f"{topic.budget_ms:g} ms",
            LATE[topic.late],
            f"<= {topic.max_batch}",
            f"{topic.scores} ({topic.score_format})",
            topic.dead_letters,
        )
        for segment in topic.segments:
            who = f"{len(segment.values)} ids" if segment.values else f"under {segment.fewer_than:g} events"
            model = models[f"{topic.name}.{segment.name}"]
            table.add_row(f"  {segment.name} ({who} in {segment.tensor}[{segment.column}])", model, segment.engine)
    kafka = config.kafka
    console = Console(width=table_width())
    console.print(table)
    for rank, item in enumerate(config.classes, 1):
        quota = f", at most {item.quota:g}/s a lane" if item.quota else ""
        click.echo(f"class {rank} {item.name}: weight {item.weight:g}, {item.timeout_ms} ms{quota}, then {item.shed}")
    click.echo(f"group {kafka.group_id} at {kafka.bootstrap_servers} ({kafka.security_protocol}), ", nl=False)
    click.echo(f"{config.worker.lanes} lanes a topic, admin http://{config.admin.host}:{config.admin.port}")


def _engines(topic: TopicConfig) -> str:
    """The chain, and by what rows skip its first engine."""
    chain = " > ".join((topic.engine, *topic.fallback))
    above = topic.primary_above_ms
    rules = [f"{topic.engine} above {above:g} ms"] if not isinstance(above, str) and above else []
    rules += ["starts cold"] if topic.cold_start == "light" else []
    return f"{chain} ({', '.join(rules)})" if rules else chain
