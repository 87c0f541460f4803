import numpy as np
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from worker.histogram import BatchHistogram

BOUNDS = (0.5, 1.0, 2.0)


def test_it_exposes_what_the_client_librarys_own_histogram_does() -> None:
    values = np.array([0.1, 0.5, 0.6, 1.0, 1.5, 2.0, 3.0])
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = BatchHistogram("h_seconds", "Doc.", ["topic"], BOUNDS)
    ours.register(histogram)
    reference = Histogram("h_seconds", "Doc.", ["topic"], registry=theirs, buckets=BOUNDS)
    histogram.observe(values[:3], "a")
    for value in values[3:]:
        histogram.observe_one(float(value), "a")
    for value in values:
        reference.labels("a").observe(value)
    names = ["h_seconds_bucket", "h_seconds_count", "h_seconds_sum"]
    labels = [{"topic": "a", "le": le} for le in ("0.5", "1.0", "2.0", "+Inf")]
    expected = [theirs.get_sample_value(names[0], label) for label in labels]
    found = [ours.get_sample_value(names[0], {**label, "le": label["le"].removesuffix(".0")}) for label in labels]
    assert found == expected == [2.0, 4.0, 6.0, 7.0]
    for name in names[1:]:
        assert ours.get_sample_value(name, {"topic": "a"}) == theirs.get_sample_value(name, {"topic": "a"})
    assert b'h_seconds_bucket{le="+Inf",topic="a"} 7.0' in generate_latest(ours)
