"""Options and steps that the commands share: which brokers, with which security, and their topics."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import click

from worker.config import Config
from worker.errors import BrokerUnreachable

CONNECT_TIMEOUT_S = 15.0
CREATE_TIMEOUT_S = 60.0

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SCORELANE_CONFIG",
    help="The worker's TOML file.  [environment: SCORELANE_CONFIG]",
)


def connection_options[F: Callable[..., Any]](command: F) -> F:
    """`--bootstrap` and `--config` for a command that only needs a broker; see `client_args`."""
    bootstrap = click.option("--bootstrap", metavar="HOST:PORT,...", help="Brokers. Wins over --config.")
    config = click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="SCORELANE_CONFIG",
        help="Take brokers, TLS and SASL from the [kafka] section of this TOML file.  [environment: SCORELANE_CONFIG]",
    )
    return bootstrap(config(command))


def client_args(config_path: Path | None, bootstrap: str | None) -> dict[str, Any]:
    """Arguments for aiokafka's clients from the two options. Raises `click.UsageError` when both are missing."""
    args: dict[str, Any] = {}
    if config_path is not None:
        args = Config.load(config_path, os.environ).kafka.client_args()
    elif not bootstrap:
        raise click.UsageError("give --bootstrap HOST:PORT or --config FILE")
    if bootstrap:
        args["bootstrap_servers"] = [server.strip() for server in bootstrap.split(",")]
    return args


def quiet() -> None:
    """Keep the client library's own log lines from the terminal: commands report errors themselves."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


@asynccontextmanager
async def started[C](client: C, args: Mapping[str, Any]) -> AsyncIterator[C]:
    """Start an aiokafka client and stop it after. Raises `BrokerUnreachable` instead of waiting forever."""
    from aiokafka.errors import KafkaConnectionError

    start: Any = getattr(client, "start")  # noqa: B009  # the three clients have no common type
    servers = ", ".join(args["bootstrap_servers"])
    remedy = "check the address, that a broker runs there, and TLS and SASL"
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await start()
    except TimeoutError:
        await _stop(client)
        raise BrokerUnreachable(f"{servers}: no answer in {CONNECT_TIMEOUT_S:g} s; {remedy}") from None
    except KafkaConnectionError as error:
        await _stop(client)
        raise BrokerUnreachable(f"{servers}: no broker can be reached; {remedy}") from error
    except BaseException:
        await _stop(client)
        raise
    try:
        yield client
    finally:
        await _stop(client)


async def _stop(client: Any) -> None:
    """Stop within a bound: with its brokers gone a client may never return."""
    close = client.stop if hasattr(client, "stop") else client.close
    try:
        async with asyncio.timeout(10):
            await close()
    except TimeoutError:
        pass


async def partitions(args: Mapping[str, Any]) -> dict[str, int]:
    """Topic -> number of partitions, of all topics that this user may see. Creates nothing."""
    async with started_admin(args) as admin:
        return await described(admin)


def started_admin(args: Mapping[str, Any]) -> AbstractAsyncContextManager[Any]:
    """A client that asks about topics and creates them. Raises `BrokerUnreachable`."""
    from aiokafka.admin import AIOKafkaAdminClient

    return started(AIOKafkaAdminClient(**args), args)


async def described(admin: Any) -> dict[str, int]:
    """`partitions`, by a client that is started."""
    async with _answer_within(CONNECT_TIMEOUT_S):
        topics = await admin.describe_topics()
    return {topic["topic"]: len(topic["partitions"]) for topic in topics}


async def create_topics(admin: Any, counts: Mapping[str, int], replication: int = -1) -> dict[str, Exception]:
    """Create topics of so many partitions. Returns what the brokers refuse, by topic.

    `replication` -1 is the brokers' own default.
    """
    from aiokafka.admin import NewTopic
    from aiokafka.errors import for_code

    # The client lets -1 pass only beside assignments, be they none.
    by_broker: dict[int, list[int]] | None = {} if replication == -1 else None
    asked = [NewTopic(name, count, replication, by_broker) for name, count in counts.items()]
    async with _answer_within(CREATE_TIMEOUT_S):
        answer = await admin.create_topics(asked)
    return {name: for_code(code)(*(why for why in words if why)) for name, code, *words in answer.topic_errors if code}


@asynccontextmanager
async def _answer_within(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BrokerUnreachable(f"no answer about topics in {seconds:g} s; check the brokers' health") from None


async def partitions_of(topic: str, args: Mapping[str, Any]) -> int:
    """Number of partitions. Raises `click.ClickException` with similar names when there is no such topic."""
    import difflib

    known = await partitions(args)
    if topic not in known:
        close = difflib.get_close_matches(topic, known, n=3)
        hint = (
            f"did you mean {', '.join(close)}?"
            if close
            else "check the name, or create it (`scorelane topics` creates a configuration's)"
        )
        raise click.ClickException(f"{topic}: no such topic at {', '.join(args['bootstrap_servers'])}; {hint}")
    return known[topic]


def table_width() -> int | None:
    """Columns for a table: the terminal's own (None), but in a pipe or a file never too few for what it holds."""
    import shutil
    import sys

    return None if sys.stdout.isatty() else max(120, shutil.get_terminal_size().columns)
