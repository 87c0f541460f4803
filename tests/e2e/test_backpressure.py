"""A publisher that the brokers slow down holds back the whole path, in bounded memory, and nothing is lost."""

from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.broker import Broker
from tests.kafka.client import Client
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka

PARTITIONS = 4
LANES = 2
INBOX_BYTES = 1 << 20
FETCH_BYTES = 1 << 20
PARTITION_FETCH_BYTES = 256 << 10
EVENTS = 120_000

BOUND = (
    # What the lanes may hold, and the records of one poll that a full lane is still handed (700 bytes of client
    # objects beside 300 of value, so four times the bytes fetched).
    LANES * INBOX_BYTES
    + 4 * PARTITIONS * PARTITION_FETCH_BYTES
    # One answer of the broker, which the client holds up to four times while it is parsed.
    + 4 * FETCH_BYTES
    # The allocator's slack, and the first use of code paths.
    + (24 << 20)
)


def test_a_throttled_publisher_holds_back_in_bounded_memory_and_catches_up(
    broker: Broker, kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    pipeline = Pipeline(kafka, unique, package.path, partitions=PARTITIONS)
    limits = {"fetch_max_bytes": FETCH_BYTES, "max_partition_fetch_bytes": PARTITION_FETCH_BYTES}
    config = configuration(
        [pipeline],
        kafka={"client_id": unique, **limits},
        worker={"lanes": LANES, "inbox_bytes": INBOX_BYTES, "max_event_bytes": 64 << 10},
    )
    where = pipeline.produce([encode(event) for event in tips(2_000, 1)])
    worker = start_worker(config)
    pipeline.wait_finished()
    settled = worker.rss_bytes()

    broker.limit_produce(unique, 50_000)
    values = [encode(event) for event in tips(EVENTS)]
    assert sum(map(len, values)) + 700 * EVENTS > 3 * BOUND, "holding everything would be seen"
    where += pipeline.produce(values)
    peak = settled
    throttled_from = pipeline.scored()

    def published_under_the_limit() -> bool:
        nonlocal peak
        peak = max(peak, worker.rss_bytes())
        return pipeline.scored() > throttled_from + 2_000

    wait_until(published_under_the_limit, "some scores pass the limit")
    assert pipeline.scored() < len(where) // 2, "the publisher is the bottleneck"
    assert peak - settled < BOUND, f"grew by {peak - settled} bytes"
    assert worker.get("/healthz")[0] == 200, "slow is not dead"

    broker.limit_produce(unique, None)
    pipeline.wait_finished()
    assert positions(pipeline.scores()) == dict.fromkeys(where, 1)
    assert worker.rss_bytes() - settled < BOUND
