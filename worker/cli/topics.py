"""scorelane topics"""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from worker.cli.client import config_option, create_topics, described, quiet, started_admin
from worker.config import Config, ConfigError, Problem
from worker.errors import WorkerError


@click.command()
@config_option
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    default=4,
    show_default=True,
    help="Of the topics with events. Scores and dead letters get as many as their events have, alarms one.",
)
@click.option("--replication", type=click.IntRange(1, 32_767), help="Copies of each.  [default: the brokers' own]")
@click.option("--dry-run", is_flag=True, help="Say what would be created, and create nothing.")
def topics(config_path: Path | None, partitions: int, replication: int | None, dry_run: bool) -> int:
    """Create the topics that a configuration names and the brokers have not: events, scores, dead letters, alarms.

    Topics that are there stay as they are. Exit code 2 when one cannot be as the configuration needs it, 1 when the
    brokers fail or forbid it.
    """
    from worker.cli.loop import run
    from worker.preflight import check_topics

    if config_path is None:
        raise click.UsageError("give --config FILE: it names the topics")
    config = Config.load(config_path, os.environ)
    quiet()
    there, wanted, refused = run(_create(config, partitions, replication or -1, dry_run))
    source = str(config_path)
    _show(config, there, {name: count for name, count in wanted.items() if name not in refused}, dry_run)
    _tell(config, source, refused)
    if problems := check_topics(config, source, wanted | there):
        raise ConfigError(problems)
    return 0


async def _create(
    config: Config, partitions: int, replication: int, dry_run: bool
) -> tuple[dict[str, int], dict[str, int], dict[str, Exception]]:
    """Partitions of the topics that are there, of those that were asked for, and why some of these were refused."""
    from aiokafka.errors import TopicAlreadyExistsError

    from worker.preflight import missing_topics

    async with started_admin(config.kafka.client_args()) as admin:
        there = await described(admin)
        wanted = missing_topics(config, there, partitions)
        refused = await create_topics(admin, wanted, replication) if wanted and not dry_run else {}
        if any(isinstance(error, TopicAlreadyExistsError) for error in refused.values()):
            # Somebody else was faster, or the user may not see them.
            there |= {name: count for name, count in (await described(admin)).items() if name in refused}
    return there, wanted, {name: error for name, error in refused.items() if name not in there}


def _show(config: Config, there: Mapping[str, int], created: Mapping[str, int], dry_run: bool) -> None:
    from worker.preflight import named_topics

    for name in named_topics(config):
        done = "is there" if name in there else "would be created" if dry_run else "created"
        if count := there.get(name) or created.get(name):
            click.echo(f"{name}: {done}, {count} partition{'s' * (count > 1)}")


def _tell(config: Config, source: str, refused: Mapping[str, Exception]) -> None:
    """Raise what was refused, if anything, as what the user or what the brokers' keeper has to mend."""
    from worker.preflight import named_topics
    from worker.refusals import ASKED_WRONG, create_remedy

    keys = named_topics(config)
    problems = [
        Problem(source, keys[name], name, f"not created: {_why(error)}", create_remedy(error, name))
        for name, error in refused.items()
    ]
    if any(isinstance(error, ASKED_WRONG) for error in refused.values()):
        raise ConfigError(problems)
    if problems:
        raise WorkerError("\n".join(map(str, problems)))


def _why(error: Exception) -> str:
    """The brokers' own words, where they have any."""
    return str(error.args[0]).rstrip(".") if error.args else type(error).__name__
