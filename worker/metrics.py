"""Every metric of the worker, in one list: its meaning, and what to do when it moves. `worker.gauges` adds those
that are read when they are scraped.

Labels are bounded: topics and engines by the configuration, reasons by `schemas.errors.REASONS`, partitions by the
assignment. All updates are per batch.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from worker.histogram import BatchHistogram

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
FINE_SECONDS = (50e-6, 100e-6, 200e-6, 500e-6, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)

Sample = tuple[tuple[str, ...], float]


class Sampled(Collector):
    """A gauge that is read when it is scraped, so that it costs nothing in between."""

    def __init__(self, name: str, documentation: str, labels: list[str], read: Callable[[], Iterable[Sample]]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in self._read():
            family.add_metric(labels, value)
        yield family


class Metrics:
    """One registry per worker, so that tests and several workers in one process do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # process_cpu_seconds_total, process_resident_memory_bytes, ...

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(name, documentation, labels, registry=self.registry)

        def histogram(name: str, documentation: str, labels: list[str], buckets: tuple[float, ...]) -> BatchHistogram:
            made = BatchHistogram(name, documentation, labels, buckets)
            self.registry.register(made)
            return made

        self.records = counter("scorelane_records", "Records taken in.", "topic")
        self.scores = counter(
            "scorelane_scores",
            "Scores acknowledged by the brokers, by the engine that made them. Scores by a fallback engine: see logs.",
            "topic",
            "engine",
        )
        self.late = counter(
            "scorelane_late",
            "Scores ready after their event's deadline. Grows: add lanes or members, or lower the load.",
            "topic",
        )
        self.dead_letters = counter(
            "scorelane_dead_letters",
            "Records that cannot be scored, by reason. Grows: look at the dead-letter topic and its headers.",
            "topic",
            "reason",
        )
        self.fallbacks = counter(
            "scorelane_fallbacks",
            "Rows that the primary engine did not score, by cause: error, hung, overdue, not_finite, device_lost,"
            " busy, budget, cold, breaker:<state>, late:<policy>, shed:<why>, segment:<name>. Grows: the primary is"
            " slow or failing, or events arrive with too little budget.",
            "topic",
            "cause",
        )
        self.skipped = counter(
            "scorelane_skipped", "Rows published without a score, as the late or shed policy says.", "topic", "cause"
        )
        self.breaker_moves = counter(
            "scorelane_breaker_moves",
            "Moves of the breakers, by engine, new state and cause.",
            "topic",
            "engine",
            "to",
            "cause",
        )
        self.alarms = Gauge(
            "scorelane_alarm", "1 while an alarm is raised.", ["topic", "cause"], registry=self.registry
        )
        self.alarms_unpublished = counter(
            "scorelane_alarms_unpublished",
            "Raised and cleared alarms that are not in alarms.topic; the log has them. Grows: look at that topic.",
        )
        self.skew_seconds = Gauge(
            "scorelane_clock_skew_seconds",
            "How far record timestamps were ahead of this machine's clock at most, in the last poll that had any ahead."
            " Such an event's budget starts at its arrival. Grows: synchronise the producers' clocks.",
            ["topic"],
            registry=self.registry,
        )
        self.unreadable_headers = counter(
            "scorelane_unreadable_headers",
            "Record headers deadline_ms that are no number or no time, and headers class that name no class. They count"
            " as absent. Grows: look at the producers.",
            "topic",
            "header",
        )
        self.batches = counter(
            "scorelane_batches",
            "Batches that were scored, by what closed them: full, enough, due, idle, drain, busy; or shed.",
            "topic",
            "closed_by",
        )
        self.batch_rows = histogram("scorelane_batch_rows", "Rows of a batch.", ["topic"], ROWS)
        self.service_seconds = histogram(
            "scorelane_service_seconds", "From closing a batch to its scores.", ["topic", "engine"], FINE_SECONDS
        )
        self.publish_seconds = histogram(
            "scorelane_publish_seconds",
            "From scores to the brokers' acknowledgement. Grows: the brokers are slow or unreachable.",
            ["topic"],
            SECONDS,
        )
        self.event_seconds = histogram(
            "scorelane_event_seconds",
            "From an event's record timestamp to the acknowledgement of its score.",
            ["topic"],
            SECONDS,
        )
        self.commits = counter("scorelane_commits", "Offset commits, by outcome (ok, failed, fenced).", "outcome")
        self.rebalances = counter("scorelane_rebalances", "Assignments received.")
        self.abandoned = counter(
            "scorelane_abandoned_rows",
            "Rows dropped unfinished when a partition was given up; its next owner scores them. Grows: raise"
            " worker.drain_timeout_ms.",
            "topic",
        )
        self.deleted = counter(
            "scorelane_deleted_records",
            "Offsets that the brokers deleted before they were read. Grows: the lag exceeds the topic's retention.",
            "topic",
        )
        self.ready = Gauge("scorelane_ready", "1 while assigned, warm and making progress.", registry=self.registry)

    def sample(self, name: str, documentation: str, labels: list[str], read: Callable[[], Iterable[Sample]]) -> None:
        """Add a gauge that is read at each scrape."""
        self.registry.register(Sampled(name, documentation, labels, read))

    def exposition(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)


def counts(counter: Counter, label: str) -> dict[str, int]:
    """What a counter has counted, by one of its labels; the others must not differ."""
    samples = (sample for family in counter.collect() for sample in family.samples if sample.name.endswith("_total"))
    return {sample.labels[label]: int(sample.value) for sample in samples}
