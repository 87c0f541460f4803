"""What the benchmarks on Kafka stand on, without Kafka: CPUs, events, and the figures of an open loop."""

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

from engines.train.reference import reference_package
from schemas.decoder import Decoder
from tests.bench.bed import Cpus
from tests.bench.events import random_events
from tests.bench.latency import Offered, latency
from tests.models import random_batch


@pytest.mark.parametrize(
    ("available", "worker", "expected"),
    [
        ([0, 1], 1, Cpus("0", "1", "1")),
        ([0, 1], 8, Cpus("0", "1", "1")),
        ([3, 5, 7], 2, Cpus("3", "7", "5")),
        (range(6), 1, Cpus("0", "5", "1,2,3,4")),
        (range(6), 3, Cpus("0,1,2", "5", "3,4")),
    ],
)
def test_only_broker_and_load_generator_ever_share_a_cpu(available: list[int], worker: int, expected: Cpus) -> None:
    assert Cpus.split(set(available), worker) == expected


@pytest.mark.parametrize("kind", ["mlp", "din"])
def test_random_events_carry_a_random_batch_and_a_key_put_in(kind: Literal["mlp", "din"], tmp_path: Path) -> None:
    spec = reference_package(tmp_path, kind).spec
    events = [{**event, "id": index} for index, event in enumerate(random_events(spec, 7))]
    rows = Decoder(spec, "msgpack").decode([msgspec.msgpack.encode(event) for event in events])
    assert not rows.invalid
    assert rows.keys == list(range(7))
    for name, values in random_batch(spec, 7).items():
        np.testing.assert_array_equal(rows.tensors[name], values)


def test_latency_is_of_this_loop_without_its_first_fifth() -> None:
    offered = Offered(first_due=1000, last_due=1100, sent_p99_ms=7.0)
    # Due, added, whole, by the primary: before the loop, in its first fifth, three that count, after the loop.
    counted = [(1020, 10, 14, 1), (1060, 50, 52, 1), (1100, 51, 60, 0)]
    table = np.array([(900, 999, 999, 0), (1019, 999, 999, 0), *counted, (1101, 999, 999, 0)])
    found = latency(table, offered, budget_ms=50.0)
    assert (found.events, found.p50_ms, found.sent_p99_ms) == (3, 50.0, 7.0)
    assert found.missed == pytest.approx(1 / 3), "50 ms are within the budget, 51 are not"
    assert found.primary == pytest.approx(2 / 3)
    # Linear between the second and the third of three: at 2 * 0.99 = 1.98.
    assert found.p99_ms == pytest.approx(50.98)
    assert found.whole_p99_ms == pytest.approx(52 + 0.98 * 8)
