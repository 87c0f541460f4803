"""scorelane replay"""

import logging
import os
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click
from click.core import ParameterSource

from worker.cli.client import config_option, table_width
from worker.cli.number import Number

if TYPE_CHECKING:
    from worker.config import Config, TopicConfig
    from worker.replay.device import Pace
    from worker.replay.report import Report
    from worker.replay.trace import Trace

Measured = tuple[str, int, float]
"""Kind of engine, rows of a batch, seconds that it takes."""
MADE_UP: Final = ("seconds", "bursts", "classes", "partitions")
"""Parameters that a recorded trace has no use for."""


class Service(click.ParamType[Measured]):
    name = "ENGINE:ROWS:MS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Measured:
        engine, _, rest = str(value).partition(":")
        rows, _, milliseconds = rest.partition(":")
        try:
            point = engine, int(rows), float(milliseconds) / 1e3
        except ValueError:
            self.fail(f"{value!r}: give engine, rows and milliseconds, such as ort:256:3.5", param, ctx)
        if point[1] < 1 or not 0 <= point[2] < 3600:
            self.fail(f"{value!r}: rows must be at least 1, milliseconds at least 0", param, ctx)
        return point


class Burst(click.ParamType[tuple[float, float, float]]):
    name = "FROM-TO:TIMES"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float, float]:
        window, _, times = str(value).partition(":")
        start, _, stop = window.partition("-")
        try:
            burst = float(start.removesuffix("s")), float(stop.removesuffix("s")), float(times)
        except ValueError:
            self.fail(f"{value!r}: give seconds and how many times the rate, such as 2s-4s:10", param, ctx)
        if not 0 <= burst[0] < burst[1] or burst[2] <= 0:
            self.fail(f"{value!r}: the end must be after the beginning, and the factor above 0", param, ctx)
        return burst


class Share(click.ParamType[tuple[str, float]]):
    name = "CLASS=PART"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        name, _, part = str(value).partition("=")
        try:
            share = float(part)
        except ValueError:
            share = 0.0
        if not name or not 0 < share <= 1:
            self.fail(f"{value!r}: give a class and its part of all events, above 0 and at most 1: L1=0.2", param, ctx)
        return name, share


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@config_option
@click.option(
    "--topic", "name", help="Topic of the configuration to play.  [default: the trace's; with --rate the only one]"
)
@click.option("--speed", type=Number(0.01, 1000.0), default=1.0, show_default=True, help="Times as fast.")
@click.option("--clock", type=click.Choice(["simulated", "real"]), default="simulated", show_default=True)
@click.option("--rate", type=Number(0, min_open=True), help="Made-up events a second, instead of TRACE.")
@click.option("--seconds", type=Number(0, 86_400, min_open=True), default=10.0, show_default=True, help="With --rate.")
@click.option("--burst", "bursts", type=Burst(), multiple=True, help="With --rate, as 2s-4s:10; may be repeated.")
@click.option(
    "--class",
    "classes",
    type=Share(),
    multiple=True,
    help="With --rate, as L1=0.2; repeated until the parts make 1.  [default: events name no class]",
)
@click.option("--partitions", type=click.IntRange(1, 10_000), default=4, show_default=True, help="With --rate.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--service",
    type=Service(),
    multiple=True,
    help="Time of an engine's batch; may be repeated: --service ort:1:0.9 --service ort:256:3.5. One time alone counts"
    " for batches of any size. In simulated time the engines that are not given are measured first.",
)
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help="What goes wrong; may be repeated (see above).")
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON instead of tables.")
@click.option("-v", "--verbose", is_flag=True, help="The worker's own log too.")
def replay(
    trace: Path | None,
    config_path: Path | None,
    name: str | None,
    speed: float,
    clock: Literal["simulated", "real"],
    rate: float | None,
    seconds: float,
    bursts: tuple[tuple[float, float, float], ...],
    classes: tuple[tuple[str, float], ...],
    partitions: int,
    seed: int,
    service: tuple[Measured, ...],
    faults: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> int:
    """Play TRACE (or made-up traffic) through the whole worker, without brokers, and say what became of the events.

    In simulated time engines take what --service says, nothing else takes long, and the same call prints the same
    bytes if --service names every engine of the topic. Faults: slow:ENGINE:FACTOR:2s-4s, hang:ENGINE:2s-4s,
    error:ENGINE:2s-4s, lost:ENGINE:2s, pause:2s-2.5s, jump:+30s:2s; ENGINE is a kind or "primary". Exit code 1 when an
    event was lost, which would be a bug; 2, behind the report, when a fault began after the end.
    """
    from worker.config import Config
    from worker.replay.faults import Fault
    from worker.replay.pipeline import Scene, play
    from worker.replay.trace import read

    if config_path is None:
        raise click.UsageError("give --config FILE: it names the model and how events are treated")
    if (trace is None) == (rate is None):
        raise click.UsageError("give either TRACE, which `scorelane record` makes, or --rate")
    if trace is not None:
        _nothing_made_up(click.get_current_context())
    config = Config.load(config_path, os.environ)
    try:
        scripted = [Fault.parse(fault) for fault in faults]
        played = read(trace) if trace is not None else None
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    topic = _topic(config, name, played.topic if played is not None else None)
    if played is None:
        assert rate is not None
        _check_shares(classes, [item.name for item in config.classes])
        played = _made_up(topic, rate, seconds, bursts, classes, partitions, seed)
    if not verbose:
        logging.getLogger("scorelane").setLevel(logging.CRITICAL)
    import msgspec

    paces = _paces(topic, service, measure=clock == "simulated")
    scene = Scene(
        config=msgspec.structs.replace(config, topics=(topic,)),
        trace=played,
        speed=speed,
        paces=paces,
        faults=scripted,
        seed=seed,
    )
    try:
        report = play(scene, clock).report
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(report.encode().decode())
    else:
        _show(report, paces)
    if any(one.lost for one in report.classes) or report.duplicates:
        return 1
    if late := [f"{fault.kind} at second {fault.start_s:g}" for fault in scripted if fault.start_s >= report.seconds]:
        raise click.UsageError(
            f"--fault: {', '.join(late)}: the replay ended at second {report.seconds:g}, so that it changed nothing;"
            " let it begin earlier, or play for longer"
        )
    return 0


def _nothing_made_up(context: click.Context) -> None:
    """Refuse, beside a trace, the options of made-up traffic."""
    given = ParameterSource.COMMANDLINE
    for option in context.command.params:
        if option.name in MADE_UP and context.get_parameter_source(option.name) is given:
            raise click.UsageError(
                f"{option.opts[0]} is for made-up traffic: give --rate instead of TRACE, or leave it"
            )


def _check_shares(shares: tuple[tuple[str, float], ...], classes: list[str]) -> None:
    """Refuse classes that the configuration has not, and parts that are not the whole."""
    names = [name for name, _ in shares]
    if unknown := sorted(set(names) - set(classes)):
        known = (
            f"the configuration's classes are {', '.join(classes)}"
            if classes
            else "the configuration has no [[classes]]"
        )
        raise click.UsageError(f"--class {', '.join(unknown)}: {known}")
    if len(set(names)) < len(names):
        raise click.UsageError(f"--class {', '.join(names)}: give each class once")
    whole = sum(part for _, part in shares)
    if shares and not isclose(whole, 1.0, abs_tol=1e-6):
        raise click.UsageError(f"--class: the parts make {whole:g}; give every class its part, together 1")


def _topic(config: "Config", name: str | None, recorded: str | None) -> "TopicConfig":
    """The topic to play: the one of `--topic`, else the trace's own; made-up traffic needs no name for an only one."""
    topics = {topic.name: topic for topic in config.topics}
    wanted = name or recorded
    if wanted is None and len(topics) == 1:
        return config.topics[0]
    if wanted in topics:
        return topics[wanted]
    among = f"give one of {', '.join(topics)}"
    if name or recorded is None:
        raise click.UsageError(f"--topic{f' {name}' if name else ''}: {among}")
    raise click.UsageError(f"the trace is of topic {recorded}, which the configuration has not: {among} with --topic")


def _made_up(
    topic: "TopicConfig",
    rate: float,
    seconds: float,
    bursts: tuple[tuple[float, float, float], ...],
    classes: tuple[tuple[str, float], ...],
    partitions: int,
    seed: int,
) -> "Trace":
    from engines.package import Package
    from worker.replay.synthetic import Traffic, make

    if late := [start for start, _, _ in bursts if start >= seconds]:
        raise click.UsageError(f"--burst: from second {late[0]:g} on, of --seconds {seconds:g}; let it begin earlier")
    traffic = Traffic(
        rate=rate, seconds=seconds, bursts=bursts, classes=dict(classes), partitions=partitions, seed=seed
    )
    spec = Package.open(Path(topic.model)).spec
    try:
        return make(traffic, topic.name, spec, topic.format)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _paces(topic: "TopicConfig", service: tuple[Measured, ...], *, measure: bool) -> "dict[str, Pace]":
    """How long each engine takes: as given, else as measured now, else (in real time) its own time."""
    from engines.package import Package
    from worker.measure import timed
    from worker.replay.device import ASYNC_DEPTH, Pace

    kinds = topic.kinds
    given = {kind: [(rows, taken) for engine, rows, taken in service if engine == kind] for kind in kinds}
    unknown = {engine for engine, _, _ in service} - set(kinds)
    if unknown:
        raise click.UsageError(f"--service {', '.join(sorted(unknown))}: the topic's engines are {', '.join(kinds)}")
    if not measure and not service:
        return {}
    package = Package.open(Path(topic.model))
    return {
        kind: Pace.through(points or timed(package, kind, topic.max_batch), depth=ASYNC_DEPTH if kind == "trt" else 1)
        for kind, points in given.items()
    }


def _show(report: "Report", paces: "dict[str, Pace]") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, width=table_width())
    table = Table(box=box.SIMPLE)
    for column in ("class", "events", "in time", "p50 ms", "p99 ms", "max ms", "primary", "missed", "lost"):
        table.add_column(column, justify="left" if column == "class" else "right")
    for one in report.classes:
        numbers = (one.in_time, one.p50_ms, one.p99_ms, one.max_ms)
        shown = [f"{numbers[0]:.3%}", *(f"{value:.1f}" for value in numbers[1:])]
        counts = [f"{value:,}" for value in (one.primary, one.missed, one.lost)]
        table.add_row(one.name, f"{one.events:,}", *shown, *counts)
    console.print(table)
    for one in report.classes:
        dead = {f"dead letter {reason}": count for reason, count in one.dead_letters.items()}
        others = ", ".join(f"{why} {n:,}" for why, n in {**one.fallback, **one.skipped, **dead}.items())
        if others:
            console.print(f"{one.name}: {others}")
    closed = ", ".join(f"{why} {count:,}" for why, count in report.batches.items())
    console.print(f"{report.seconds:.3f} s, batches of {report.rows_a_batch:.1f} rows: {closed}")
    console.print(f"duplicates {report.duplicates}, not committed {report.uncommitted}, sessions {report.sessions}")
    for kind, pace in paces.items():
        console.print(f"{kind}: {pace.fixed_s * 1e3:.3f} ms a batch and {pace.row_s * 1e6:.2f} us a row")
    for move in report.breaker:
        console.print(f"{move.at_s:9.3f} s  {move.lane} {move.engine}: {move.before} -> {move.after}: {move.cause}")
    for alarm in report.alarms:
        console.print(f"{alarm.at_s:9.3f} s  alarm {alarm.state}: {alarm.cause} {alarm.observed:g} ({alarm.limit:g})")
