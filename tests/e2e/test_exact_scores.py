"""Every event is scored exactly by the model, row i to event i, for every batch size, format and chunk size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest

from engines.package import Package
from schemas.encoder import Encoder
from schemas.samples import rows
from schemas.spec import builtin
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import direct_scores, event_fields, fingerprint_package
from tests.kafka.client import Client
from tests.kafka.worker import Worker
from tests.models import tiny_package

pytestmark = pytest.mark.kafka

MAX_BATCHES = (1, 2, 7, 32, 256)
FORMATS = ("msgpack", "json")
CHUNKS = (1, 2, 5, 6, 7, 8, 31, 33, 64, 100, 243)
SAMPLES = {"criteo": "criteo_sample.txt", "avazu": "avazu_sample.txt", "alimama": "alimama_sample.csv"}
DATA = Path(__file__).parents[1] / "data"
LAST_BITS = 2.4e-7
"""Four units in the last place of a probability: ONNX Runtime sums in an order that depends on the batch's size."""


@dataclass
class Case:
    """Events of one topic, in the order of `values`."""

    pipeline: Pipeline
    package: Package
    events: Sequence[Mapping[str, object]]
    values: list[bytes]
    where: list[tuple[int, int]]


@dataclass
class Run:
    cases: dict[str, Case]
    worker: Worker


@pytest.fixture(scope="module")
def run(kafka: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """All topics scored by one worker: half of the records were waiting when it started, half came in chunks."""
    directory = tmp_path_factory.mktemp("exact")
    cases = {**_batch_cases(kafka, directory), **_sample_cases(kafka, directory)}
    for case in cases.values():
        case.where += case.pipeline.produce(case.values[: len(case.values) // 2])
    worker = Worker(configuration([case.pipeline for case in cases.values()]), directory)
    try:
        worker.wait_ready()
        for case in cases.values():
            rest = iter(case.values[len(case.values) // 2 :])
            for size in CHUNKS:
                case.where += case.pipeline.produce(islice(rest, size))
            case.where += case.pipeline.produce(rest)
        for case in cases.values():
            case.pipeline.wait_finished()
        yield Run(cases, worker)
    finally:
        worker.sigkill()


def _batch_cases(kafka: Client, directory: Path) -> dict[str, Case]:
    package = fingerprint_package(directory, builtin("tipping"))
    cases = {}
    for seed, (max_batch, format) in enumerate(product(MAX_BATCHES, FORMATS)):
        name = f"exact-{max_batch}-{format}"
        options = {"max_batch": max_batch, "format": format}
        events = tips(1000, seed)
        pipeline = Pipeline(kafka, name, package.path, options=options, group="exact")
        values = [encode(event, format) for event in events]
        cases[name] = Case(pipeline, package, [event_fields(event) for event in events], values, [])
    return cases


def _sample_cases(kafka: Client, directory: Path) -> dict[str, Case]:
    cases = {}
    for sample, file in SAMPLES.items():
        package = tiny_package(directory, sample, "din" if sample == "alimama" else "mlp", name=sample)
        encoder = Encoder(package.spec, "json")
        events = list(rows(DATA / file))
        pipeline = Pipeline(kafka, f"exact-{sample}", package.path, options={"format": "json"}, group="exact")
        cases[sample] = Case(pipeline, package, events, [encoder.encode(event) for event in events], [])
    return cases


def _scores_by_event(case: Case) -> np.ndarray:
    scores = case.pipeline.scores()
    assert positions(scores) == dict.fromkeys(case.where, 1), "each record is scored once"
    assert {(score.engine, score.reason, score.topic) for score in scores} == {("ort", None, case.pipeline.name)}
    assert {(score.model, score.version) for score in scores} == {(case.package.name, case.package.version)}
    by_position = {(score.partition, score.offset): score for score in scores}
    ordered = [by_position[position] for position in case.where]
    key = case.package.spec.key or "event_id"
    for score, event in zip(ordered, case.events, strict=True):
        assert key not in event or str(score.key) == str(event[key])
    return np.array([score.score for score in ordered])


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("max_batch", MAX_BATCHES)
def test_each_event_has_the_score_of_its_own_row_to_the_bit(run: Run, max_batch: int, format: str) -> None:
    case = run.cases[f"exact-{max_batch}-{format}"]
    expected = direct_scores(case.package, case.events)
    assert len(set(expected.tolist())) > 0.99 * len(expected), "rows can be told apart by their scores"
    np.testing.assert_array_equal(_scores_by_event(case), expected.astype(np.float64))


@pytest.mark.parametrize("sample", SAMPLES)
def test_rows_of_public_logs_have_the_scores_of_a_direct_run(run: Run, sample: str) -> None:
    case = run.cases[sample]
    expected = direct_scores(case.package, case.events)
    assert np.ptp(expected) > 0.1, "rows can be told apart by their scores"
    np.testing.assert_allclose(_scores_by_event(case), expected, rtol=0, atol=LAST_BITS)


@pytest.mark.parametrize("max_batch", MAX_BATCHES)
def test_batches_reach_their_limit_and_never_exceed_it(run: Run, max_batch: int) -> None:
    for format in FORMATS:
        topic = run.cases[f"exact-{max_batch}-{format}"].pipeline.name
        assert run.worker.metric("scorelane_batch_rows_sum", topic=topic) == 1000
        batches = run.worker.metric("scorelane_batch_rows_count", topic=topic)
        assert batches >= 1000 / max_batch
        # Half of the records were waiting in two partitions, so most of their batches were full.
        assert batches <= 500 / max_batch + 510
        assert run.cases[topic].pipeline.dead_letters() == []
