"""What faults cost, on the whole pipeline in simulated time: `python -m tests.bench pressure`. Deterministic."""

import logging
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tests.worker.replay.scenes import MIX, config, scene
from worker.replay.pipeline import play
from worker.replay.report import Report
from worker.replay.synthetic import Traffic

START, STOP = 2.0, 4.0
RATE = 1000.0
SCENES = {
    "nothing": (),
    "20 x slower": ("slow:primary:20:2s-4s",),
    "hangs": ("hang:primary:2s-4s",),
    "errors": ("error:primary:2s-4s",),
    "device lost": ("lost:primary:2s",),
    "clock +30 s": ("jump:+30s:2s",),
    "clock -30 s": ("jump:-30s:2s",),
    "paused 300 ms": ("pause:2s-2.3s",),
}
"""All of them during a burst of ten times the rate, from 2 s to 4 s of 7."""


def main(arguments: Sequence[str]) -> int:
    """`arguments`: numbers of lanes, 1 and 2 where none is given."""
    logging.getLogger("scorelane").setLevel(logging.CRITICAL)
    table = Table(box=box.SIMPLE, title=f"{RATE:.0f} events/s, x10 from 2 s to 4 s; budget 50 ms")
    table.add_column("primary")
    for column in ("lanes", "L1 in time", "all in time", "p99 ms", "max ms", "fallback after", "back after", "lost"):
        table.add_column(column, justify="right")
    traffic = Traffic(rate=RATE, seconds=7.0, bursts=[(START, STOP, 10.0)], classes=MIX)
    for lanes in map(int, arguments or ("1", "2")):
        for name, faults in SCENES.items():
            report = play(scene(*faults, traffic=traffic, whole=config(lanes=lanes))).report
            table.add_row(name, str(lanes), *_row(report))
    Console(width=120).print(table)
    return 0


def _row(report: Report) -> list[str]:
    classes = report.classes
    missed = sum(one.missed for one in classes)
    opened = [move.at_s for move in report.breaker if move.after == "open"]
    closed = [move.at_s for move in report.breaker if move.after == "closed"]
    return [
        f"{classes[0].in_time:.3%}",
        f"{1 - missed / report.events:.3%}",
        f"{max(one.p99_ms for one in classes):.1f}",
        f"{max(one.max_ms for one in classes):.1f}",
        f"{(opened[0] - START) * 1000:.0f} ms" if opened else "-",
        f"{closed[-1] - STOP:.2f} s" if closed else "-",
        str(sum(one.lost for one in classes) + report.duplicates + report.uncommitted),
    ]
