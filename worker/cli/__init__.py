"""The `scorelane` command. Each command is one file here, imported when it is called."""

import importlib
import os
import signal
import sys
from typing import Final

try:
    import click
except KeyboardInterrupt:  # the longest of what comes before `main`
    sys.exit(130)

COMMANDS: Final = {
    "run": ("worker.cli.run:run", "Run the worker: events from Kafka, scores back to Kafka."),
    "check": ("worker.cli.check:check", "Validate a configuration and everything it names."),
    "topics": ("worker.cli.topics:topics", "Create the topics that a configuration names and the brokers have not."),
    "produce": ("worker.cli.produce:produce", "Publish the rows of a CSV or JSONL file as events, at a rate."),
    "tail": ("worker.cli.tail:tail", "Watch the scores of a topic."),
    "demo": ("worker.cli.demo:demo", "Broker, models, live events, worker and a live view, in one command."),
    "model": ("worker.cli.model:model", "Train and inspect model packages."),
    "engine": ("worker.cli.engine:engine", "Build TensorRT plans and compare their precisions."),
    "record": ("worker.cli.record:record", "Write a topic's records to a file, to be replayed."),
    "replay": ("worker.cli.replay:replay", "Traffic through the whole worker in simulated time, with scripted faults."),
    "plan": ("worker.cli.plan:plan", "How many lanes, processes and partitions a load needs."),
}
"""Name -> (where it is, what it does). Imports are late: `scorelane --help` and `run` load nothing they do not need."""


class LateGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command), f"{module}:{name} is not a command. This is a bug."
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LateGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="scorelane", prog_name="scorelane")
def cli() -> None:
    """Streaming inference: Kafka events in, deadline micro-batches, scores out.

    Exit codes: 0 done, 1 the worker or a broker failed, 2 wrong usage, configuration or model.
    """


def main() -> None:
    """Run the command line. Expected errors become one line each on stderr, never a traceback."""
    from worker.cli.leaving import leave

    try:
        _terminate_on_hangup()
        code = _call()
    except KeyboardInterrupt:
        code = 130
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    leave(code if isinstance(code, int) else 0)


def _terminate_on_hangup() -> None:
    """A terminal that is closed stops a command as SIGTERM does, except under nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def _call() -> object:
    from worker.cli.stdout import guard_stdout

    guard_stdout()
    try:
        code = cli(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except click.UsageError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _say(error.format_message(), 2)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        return 130
    except Exception as error:
        return _expected(error)


def _expected(error: Exception) -> int:
    """Print an error that users can mend and return the exit code; raise the others, which are bugs."""
    from aiokafka.errors import KafkaError

    from engines.errors import EngineError
    from schemas.errors import InvalidSpec
    from worker.config import ConfigError
    from worker.errors import WorkerError

    if isinstance(error, ConfigError | InvalidSpec | EngineError):
        return _say(str(error), 2)
    if isinstance(error, WorkerError):
        return _say(str(error), 1)
    if isinstance(error, PermissionError) and error.filename is not None:
        return _say(f"{error.filename}: {error.strerror}; check its permissions and those of the directories above", 2)
    if isinstance(error, KafkaError):
        return _say(f"Kafka: {error or type(error).__name__}; check the brokers and the [kafka] settings", 1)
    raise error


def _say(message: str, code: int) -> int:
    for line in message.splitlines():
        click.echo(f"scorelane: {line}", err=True)
    return code
