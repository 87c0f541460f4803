"""What the demo shows: a live table on a terminal, a line every few seconds elsewhere, a summary in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from worker.cli.demo.observer import Observed
from worker.cli.demo.traffic import Sent, Source
from worker.cli.demo.worker_process import Samples
from worker.cli.tail import decimals, table
from worker.printable import printable

MANY_LATE = 0.05
EMBEDDED_LATE = (
    "Many were late: broker, events, worker and this view share the machine, and it is too busy for the rate, "
    "or the embedded broker, slower with each record, has too many: try a smaller --rate or fewer --seconds."
)
LATE = (
    "Many were late: events, worker and this view share the machine, and it is too busy for the rate, or the way to "
    "the brokers and back takes too much of the budget: try a smaller --rate or a larger --budget-ms."
)


@dataclass(slots=True)
class Row:
    """One topic at one moment. Rates in events a second over the last second, latencies over the last five."""

    source: Source
    sent: Sent
    observed: Observed
    rate_in: float = 0.0
    rate_out: float = 0.0
    late: float = 0.0
    """Part of the last second's scores that came after their deadline."""
    batch: float = 0.0
    """Mean rows of a batch so far, by the worker's own count."""
    dead_letters: int = 0
    _last: tuple[int, int, int] = field(default=(0, 0, 0))

    def tick(self, seconds: float) -> None:
        """`seconds` have passed since the last tick."""
        counts = self.observed.counts
        events, scores, late = self._last
        self._last = self.sent.events, counts.scores, counts.late
        self.rate_in = (self._last[0] - events) / seconds
        self.rate_out = (self._last[1] - scores) / seconds
        self.late = (self._last[2] - late) / max(self._last[1] - scores, 1)
        self.observed.latency.second()

    def measure(self, samples: Samples) -> None:
        """Take over what the worker says about this topic."""
        sums: dict[str, float] = {}
        for name, labels, value in samples:
            if labels.get("topic") == self.source.topic:
                sums[name] = sums.get(name, 0.0) + value
        batches = sums.get("scorelane_batch_rows_count", 0.0)
        self.batch = sums.get("scorelane_batch_rows_sum", 0.0) / batches if batches else 0.0
        self.dead_letters = int(sums.get("scorelane_dead_letters_total", 0.0))

    @property
    def missing(self) -> int:
        """Acknowledged events whose score was not seen (yet)."""
        return self.sent.acknowledged - self.observed.counts.scores


def live(rows: Sequence[Row], head: str) -> RenderableType:
    """The whole screen."""
    topics = Table(expand=True)
    for column in ("topic", "in/s", "out/s", "batch", "p50", "p99", "late", "engines"):
        topics.add_column(column, justify="left" if column in {"topic", "engines"} else "right", no_wrap=True)
    for row in rows:
        counts, latency = row.observed.counts, row.observed.latency
        topics.add_row(
            f"{row.source.topic} ({row.source.sample}, {row.source.format})",
            f"{row.rate_in:.0f}",
            f"{row.rate_out:.0f}",
            f"{row.batch:.1f}",
            _ms(latency.percentile(50, recent=True)),
            _ms(latency.percentile(99, recent=True)),
            Text(f"{row.late:.0%}", style="red" if row.late else ""),
            Text(counts.engine_mix()),
        )
    last = [score for row in rows for score in list(row.observed.counts.last)[-5:]]
    return Group(Text(head, style="bold"), topics, Panel(table(last), title="last scores"))


def line(row: Row) -> str:
    """One topic in one line, for pipes and logs."""
    counts, latency = row.observed.counts, row.observed.latency
    return (
        f"{row.source.topic}: in {row.rate_in:.0f}/s, out {row.rate_out:.0f}/s, batch {row.batch:.1f}, "
        f"p50 {_ms(latency.percentile(50, recent=True))}, p99 {_ms(latency.percentile(99, recent=True))}, "
        f"late {row.late:.0%}, {counts.engine_mix() or 'no scores yet'}"
    )


def summary(rows: Sequence[Row], seconds: float, *, embedded: bool) -> str:
    """The totals. Latency counts from when an event was due to when its score was seen."""
    lines = [f"{seconds:.0f} s of events"]
    for row in rows:
        counts, latency = row.observed.counts, row.observed.latency
        reasons = f" ({_counts(counts.reasons)})" if counts.reasons else ""
        share = 100 * counts.late / counts.scores if counts.scores else 0.0
        lines += [
            f"{row.source.topic} ({row.source.sample}, {row.source.format}):",
            f"  {row.sent.events} events sent, {row.sent.acknowledged} acknowledged, {counts.scores} scored, "
            f"{row.missing} missing, {row.observed.duplicates} duplicates, {row.dead_letters} dead letters",
            f"  latency p50 {_ms(latency.percentile(50))}, p99 {_ms(latency.percentile(99))}; "
            f"deadline missed by {counts.late} ({share:.2f} %); batch {row.batch:.1f} rows",
            f"  engines: {counts.engine_mix() or 'none'}{reasons}",
        ]
        if counts.last:
            score = counts.last[-1]
            by = f" by {score.model} {score.version}" if score.score is not None else f" ({score.reason})"
            lines.append(f"  last score: {printable(str(score.key))} = {decimals(score)}{by}")
    if any(row.observed.counts.late > MANY_LATE * row.observed.counts.scores for row in rows):
        lines.append(EMBEDDED_LATE if embedded else LATE)
    return "\n".join(lines)


def _ms(milliseconds: float) -> str:
    return "-" if milliseconds != milliseconds else f"{milliseconds:.1f} ms"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in counts.items())
