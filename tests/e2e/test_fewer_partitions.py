"""A score topic with fewer partitions than its input gets every score, an input partition's in order."""

from pathlib import Path

import pytest

from schemas.spec import builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import Client

pytestmark = pytest.mark.kafka


def test_scores_of_more_partitions_than_the_output_has_are_all_there_and_in_order(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    pipeline = Pipeline(kafka, unique, package.path, partitions=5, score_partitions=2, options={"max_batch": 16})
    where = pipeline.produce([encode(event) for event in tips(2_000)])
    start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    messages = kafka.read_all(pipeline.scores_topic)
    scores = [pipeline.decode(message) for message in messages]
    assert positions(scores) == dict.fromkeys(where, 1)
    assert {(score.partition, message.partition) for score, message in zip(scores, messages, strict=True)} == {
        (number, number % 2) for number in range(5)
    }
    for number in range(5):
        offsets = [score.offset for score in scores if score.partition == number]
        assert offsets == sorted(offsets)
