"""scorelane run"""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from worker.cli.client import config_option
from worker.cli.logs import log_to_stderr
from worker.cli.loop import run as run_loop
from worker.config import Config

log = logging.getLogger("scorelane.run")

SIDE_BY_SIDE = "start the vendor's multi-process service (nvidia-cuda-mps-control -d) to have them run side by side"
LAST_PORT = 65_535
GRACE_S = 30.0
"""What a member has beyond its own drain time before it is killed."""


@click.command()
@config_option
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Members of the group to run here, each a process (one core each); dead ones are started again.",
)
@click.option("--member", type=click.IntRange(0), hidden=True)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level on stderr. At info there is a line for each change of state, none for an event.",
)
def run(config_path: Path | None, processes: int, member: int | None, log_level: str) -> int:
    """Run the worker: events from Kafka in, scores out, until SIGTERM or Ctrl-C.

    The first signal drains: no more events are taken, everything taken is scored, published and committed, within
    worker.drain_timeout_ms. Member i serves /healthz, /readyz and /metrics on port admin.port + i.

    Exit codes: 0 after a whole drain, 1 on a failure that a restart may mend or when the last commit failed or records
    were left to the next owner, 2 when the configuration or a model is wrong.
    """
    config = load(config_path)
    log_to_stderr(log_level, member)
    if config.admin.port + processes - 1 > LAST_PORT:
        raise click.UsageError(f"--processes {processes}: admin.port {config.admin.port} leaves no ports for so many")
    if processes > 1:
        from worker.supervisor import Supervisor

        if takes_turns(config):
            log.warning("%d processes take turns on a GPU; %s", processes, SIDE_BY_SIDE)
        grace_s = config.worker.drain_timeout_ms / 1000 + GRACE_S
        return run_loop(
            Supervisor(lambda i: member_command(config_path, i, log_level), processes, grace_s=grace_s).run()
        )
    from worker.service import serve

    run_loop(serve(config, member=member or 0))
    return 0


def load(config_path: Path | None) -> Config:
    """The configuration with the environment's overrides."""
    if config_path is None:
        raise click.UsageError("give --config FILE; `scorelane check --example` prints one")
    return Config.load(config_path, os.environ)


def takes_turns(config: Config) -> bool:
    """Whether several processes of this configuration would share a GPU that runs one of them at a time."""
    from engines.placement import mps_runs

    return any("trt" in topic.kinds for topic in config.topics) and not mps_runs()


def member_command(config_path: Path | None, member: int, log_level: str) -> Sequence[str]:
    """How the supervisor runs one member: by this interpreter, whatever is first on PATH, and by the installed code,
    whatever modules lie in the working directory (-P)."""
    options = ["--config", str(config_path), "--member", str(member), "--log-level", log_level]
    return [sys.executable, "-P", "-m", "worker.cli", "run", *options]
