"""scorelane demo"""

import secrets
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import click

from worker.cli.client import quiet
from worker.cli.loop import run, run_until_signal
from worker.cli.number import Number
from worker.errors import BrokerUnreachable

EMBEDDED_S = 60.0
"""How long events are sent to the embedded broker where nothing else is asked: after that it is visibly slower."""


@click.command()
@click.option(
    "--seconds",
    type=Number(min=0, min_open=True),
    help=f"End after so long.  [default: {EMBEDDED_S:g}, with --bootstrap at Ctrl-C]",
)
@click.option("--bootstrap", metavar="HOST:PORT,...", help="A running Kafka.  [default: an embedded broker in memory]")
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    default=50.0,
    show_default=True,
    help="Events a second of each of the two topics, open loop.",
)
@click.option("--budget-ms", type=Number(1), default=50.0, show_default=True, help="Time for each event.")
def demo(seconds: float | None, bootstrap: str | None, rate: float, budget_ms: float) -> int:
    """Show the whole thing: broker, models, live events, worker, and the scores as they come.

    A synthetic live room sends tips in msgpack. Ad events, in JSON, are the rows of a public click log that is in
    scorelane's source tree; installed without it they are made up too. The models are trained on first use and kept in
    the cache. The worker is a real `scorelane run`. Latency counts from the time an event was due, at an open-loop
    rate, to the time its score was seen.

    With --bootstrap the topics get names of their own and are deleted in the end. The embedded broker keeps all
    records in memory and gets slower with each: the demo ends by itself after a minute, and after 1 GiB at the latest.
    Exit code 1 when an event has no score.
    """
    from worker.cli.demo import view
    from worker.cli.demo.models import model
    from worker.cli.demo.session import Show, create_topics, delete_topics, play
    from worker.cli.demo.worker_process import WorkerProcess

    if not bootstrap:
        _check_embedded()
    quiet()
    signal.signal(signal.SIGTERM, _interrupt)
    with ExitStack() as stack:
        packages = {sample: model(sample, say) for sample in ("tipping", _ads_sample())}
        server = bootstrap or stack.enter_context(_broker()).bootstrap
        say(f"broker {server}" + ("" if bootstrap else " (embedded, in memory)"))
        if _ads_sample() == "ad":
            say("ad events are made up: the rows of the public click log are in the source tree only")
        # Its own names also on its own broker, which others may try their topics on.
        prefix = f"scorelane-demo-{secrets.token_hex(3)}." if bootstrap else "demo."
        if seconds is None and not bootstrap:
            seconds = EMBEDDED_S
        show = Show(server, _sources(prefix), rate, seconds, embedded=not bootstrap)
        run(create_topics(show))
        if bootstrap:
            stack.callback(lambda: run(delete_topics(show)))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="scorelane-demo-")))
        worker = stack.enter_context(WorkerProcess(_config(show, packages, budget_ms), directory))
        say(f"worker started, process {worker.process.pid}, joining its group (3 to 5 s)")
        played = run_until_signal(lambda stop: play(show, worker, say, stop))
        if played is None:
            say("stopped before the worker was ready")
            return 0
        code = worker.stop()
        say(view.summary(played.rows, played.seconds, embedded=show.embedded))
        say(f"worker drained, exit code {code}")
        return int(code != 0 or any(row.missing > row.dead_letters for row in played.rows))


def say(text: str) -> None:
    click.echo(text)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _check_embedded() -> None:
    """Refuse before any model is trained in vain."""
    from worker.embedded import broker_binary

    try:
        broker_binary()
    except BrokerUnreachable as error:
        raise click.ClickException(str(error)) from error


def _broker() -> Any:
    from worker.embedded import EmbeddedBroker

    return EmbeddedBroker()


def _ads_sample() -> str:
    from worker.cli.demo.models import criteo_file

    return "criteo" if criteo_file() else "ad"


def _sources(prefix: str) -> list[Any]:
    from worker.cli.demo.models import criteo_file
    from worker.cli.demo.traffic import ad_requests, criteo, live_room

    file = criteo_file()
    ads = criteo(f"{prefix}ads", file) if file else ad_requests(f"{prefix}ads")
    return [live_room(f"{prefix}tips"), ads]


def _config(show: Any, packages: dict[str, Any], budget_ms: float) -> dict[str, Any]:
    """What the worker is told.

    The embedded broker answers a waiting fetch only when its time is over, and a first join after half of the session
    timeout.
    """
    topics = [
        {
            "name": source.topic,
            "model": str(packages[source.sample].path),
            "format": source.format,
            "budget_ms": budget_ms,
        }
        for source in show.sources
    ]
    group = f"scorelane-demo-{secrets.token_hex(3)}"
    kafka: dict[str, Any] = {"bootstrap_servers": show.bootstrap, "group_id": group}
    if show.embedded:
        kafka |= {"fetch_max_wait_ms": 10, "session_timeout_ms": 6000, "heartbeat_interval_ms": 1500}
    return {"kafka": kafka, "topics": topics, "worker": {"lanes": 2}}
