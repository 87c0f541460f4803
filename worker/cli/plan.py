"""scorelane plan"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from worker.cli.number import Number

if TYPE_CHECKING:
    from worker.plan import Load, Plan
    from worker.service_time import ServiceTime

Points = list[tuple[int, float]]
"""(rows of a batch, seconds that it takes)"""


class Measurement(click.ParamType[tuple[int, float]]):
    name = "ROWS:MS"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        rows, _, milliseconds = str(value).partition(":")
        try:
            point = int(rows), float(milliseconds) / 1e3
        except ValueError:
            self.fail(f"{value!r}: give rows and milliseconds, such as 256:3.5", param, ctx)
        if point[0] < 1 or not 0 < point[1] < 3600:
            self.fail(f"{value!r}: rows must be at least 1, milliseconds above 0", param, ctx)
        return point


@click.command()
@click.option("--rate", type=Number(0, min_open=True), help="Events a second at the peak.")
@click.option(
    "--trace",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Traffic of `scorelane record`, instead of --rate: the rate that its busiest second did not exceed (95 %).",
)
@click.option("--budget-ms", type=Number(0, min_open=True), default=50.0, show_default=True)
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Model package. Its accepted plan's report is used for trt, the other engines are timed here.",
)
@click.option("--engine", default="ort", show_default=True, help="Engine of the model: trt, ort, trees, light.")
@click.option(
    "--measured",
    type=Measurement(),
    multiple=True,
    help="Time of a batch, instead of --model; of two sizes or more: --measured 1:0.9 --measured 256:3.5",
)
@click.option("--max-batch", type=click.IntRange(1, 65_536), default=256, show_default=True)
@click.option(
    "--chunk", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="Events that one poll brings."
)
@click.option("--publish-ms", type=Number(0), default=10.0, show_default=True)
@click.option(
    "--host-us",
    type=Number(0),
    default=10.0,
    show_default=True,
    help="Processor time of an event beside the engine: fetch, decode, publish.",
)
@click.option("--headroom", type=Number(0.05, 1.0), default=0.7, show_default=True, help="Planned utilisation.")
@click.option("--lanes", type=click.IntRange(1), default=4, show_default=True, help="Lanes of one process.")
def plan(
    rate: float | None,
    trace: Path | None,
    budget_ms: float,
    model: Path | None,
    engine: str,
    measured: tuple[tuple[int, float], ...],
    max_batch: int,
    chunk: int,
    publish_ms: float,
    host_us: float,
    headroom: float,
    lanes: int,
) -> int:
    """How many lanes, processes and partitions a load needs.

    Each lane is simulated at its share of the rate, batches closing as in the worker. Lanes count as independent: give
    a GPU's lanes the times that were measured with all of them at work.
    """
    from worker.plan import Load, PlanError
    from worker.plan import plan as make
    from worker.service_time import ServiceTime

    if (rate is None) == (trace is None):
        raise click.UsageError("give either --rate N or --trace FILE")
    if rate is None and trace is not None:
        rate = _peak(trace)
    assert rate is not None
    if bool(measured) == bool(model):
        raise click.UsageError("give either --model DIR or --measured ROWS:MS")
    if measured and max_batch > 1 and len({rows for rows, _ in measured}) < 2:
        raise click.UsageError(
            f"--measured: one size of batch does not tell what a row costs; give two or more, at best 1:MS and"
            f" {max_batch}:MS"
        )
    points = list(measured) if model is None else _points(model, engine, max_batch)
    load = Load(
        rate=rate,
        budget_s=budget_ms / 1e3,
        after_s=publish_ms / 1e3,
        chunk=chunk,
        host_row_s=host_us / 1e6,
        max_batch=max_batch,
        headroom=headroom,
        lanes_a_process=lanes,
    )
    service = ServiceTime.measured(points)
    try:
        made = make(service, load)
    except PlanError as error:
        raise click.ClickException(str(error)) from error
    _show(points, service, load, made)
    return 0


def _peak(trace: Path) -> float:
    from worker.arrivals import peak
    from worker.replay.trace import TraceError, read

    try:
        records = read(trace).records
    except TraceError as error:
        raise click.ClickException(str(error)) from error
    if not records:
        raise click.ClickException(f"{trace}: no records; record a time with traffic")
    return peak([record.timestamp_ms for record in records])


def _points(model: Path, engine: str, max_batch: int) -> Points:
    from engines.package import Package

    package = Package.open(model)
    if engine == "trt":
        return _reported(package.path)
    from worker.measure import timed

    return timed(package, engine, max_batch)


def _reported(root: Path) -> Points:
    """p99 of every bucket of the plan that was accepted last, by its gates' report."""
    from engines.plans import found

    accepted = [plan.record for plan in found(root) if plan.record.accepted]
    if not accepted:
        raise click.ClickException(
            f"{root}: no accepted plan; build one with `scorelane engine build`, or give --measured ROWS:MS"
        )
    speed = max(accepted, key=lambda record: record.judged_ms).report["measured"]["speed"]
    return [(int(bucket), one["p99_us"] / 1e6) for bucket, one in speed.items()]


def _show(points: Points, service: "ServiceTime", load: "Load", made: "Plan") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    latency = made.latency
    bound = "bounded by the lanes" if made.bounded_by == "lanes" else f"bounded by --host-us {load.host_row_s * 1e6:g}"
    table = Table(box=box.SIMPLE, show_header=False)
    rows = [
        ("batch", ", ".join(f"{n} rows {seconds * 1e3:.3g} ms" for n, seconds in sorted(points))),
        ("lanes", f"{made.lanes} (for {made.limited_by})"),
        ("processes", f"{made.processes}, each {made.host_busy:.0%} of a core beside the engine"),
        ("partitions", f"{made.partitions} at least"),
        ("capacity", f"{made.capacity:,.0f} events/s, {bound}, {load.rate / made.capacity:.0%} of it used"),
        (
            "latency",
            f"mean {latency.mean * 1e3:.1f} ms, p99 {latency.p99 * 1e3:.1f} ms,"
            f" plus {load.after_s * 1e3:g} ms to publish",
        ),
        ("batches", f"{latency.mean_batch:.0f} rows on average, sessions busy {latency.busy:.0%}"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    Console(soft_wrap=True).print(table)
