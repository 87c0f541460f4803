"""What the demo counts and shows of the scores that come back."""

import io
import math

import msgspec
import pytest
from rich.console import Console

from tests.worker.test_cli import SCORE
from worker.cli.demo.observer import Observed
from worker.cli.demo.percentiles import Percentiles
from worker.cli.demo.traffic import Sent, live_room
from worker.cli.demo.view import Row, live, summary


def test_percentiles_are_at_most_two_percent_high() -> None:
    latencies = Percentiles(window=2)
    for milliseconds in range(1, 1001):
        latencies.add(float(milliseconds))
    for p in (1, 50, 99, 100):
        exact = p * 10
        assert exact <= latencies.percentile(p) * (1 + 1e-9)
        assert latencies.percentile(p) <= exact * 1.02
    latencies.second()
    latencies.second()
    assert math.isnan(latencies.percentile(50, recent=True)), "the window has moved on"
    assert not math.isnan(latencies.percentile(50))


def test_repeated_scores_are_counted_apart() -> None:
    observed = Observed()
    for offset in (7, 8, 7, 9):
        observed.add(msgspec.structs.replace(SCORE, offset=offset), now_ms=1020.0)
    observed.add(msgspec.structs.replace(SCORE, partition=1), now_ms=1020.0)
    assert (observed.counts.scores, observed.duplicates) == (4, 1)
    assert 20.0 <= observed.latency.percentile(100) <= 20.4


@pytest.mark.parametrize(
    ("changed", "last"),
    [
        ({"key": "[/x]\x1b[2J"}, r"[/x]\x1b[2J = 0.2500 by tipping 1"),
        ({"score": None, "engine": "none", "reason": "late:skip"}, "tip-1 = - (late:skip)"),
    ],
)
def test_the_demo_shows_any_score(changed: dict[str, object], last: str) -> None:
    row = Row(live_room("tips"), Sent(), Observed())
    row.observed.add(msgspec.structs.replace(SCORE, **changed), now_ms=1020.0)
    console = Console(width=200, file=io.StringIO())
    console.print(live([row], "head"))
    assert isinstance(console.file, io.StringIO)
    assert last.partition(" ")[0] in console.file.getvalue()
    assert summary([row], 1.0, embedded=True).splitlines()[5].strip() == f"last score: {last}"


@pytest.mark.parametrize(("embedded", "remedy"), [(True, "fewer --seconds"), (False, "a larger --budget-ms")])
def test_the_embedded_broker_is_blamed_only_where_it_runs(embedded: bool, remedy: str) -> None:
    row = Row(live_room("tips"), Sent(), Observed())
    row.observed.add(msgspec.structs.replace(SCORE, late=True), now_ms=1020.0)
    hint = summary([row], 1.0, embedded=embedded).splitlines()[-1]
    assert hint.startswith("Many were late: ") and remedy in hint
    assert ("embedded broker" in hint) is embedded
