"""The terms of fetches, worked out by hand, and the key that they come from."""

from pathlib import Path

import pytest

from worker.config import Config, ConfigError, KafkaConfig
from worker.pacing import Pacing, Terms


def pacing(*budgets_ms: float, **kafka: int) -> Pacing:
    return Pacing(KafkaConfig(bootstrap_servers="localhost:1", **kafka), budgets_ms or (50.0,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("records", "partial", "terms"),
    [
        (0, False, Terms(1, 500)),  # nothing comes: few empty answers
        (0, True, Terms(1, 20)),  # what is left out may have records
        (1, False, Terms(1, 20)),  # a lone record says nothing about the next one
        (2, False, Terms(262_144, 5)),
        (16_384, True, Terms(262_144, 5)),
    ],
)
def test_the_fetch_after_records_that_came_together_gathers(records: int, partial: bool, terms: Terms) -> None:
    assert pacing().after(records, partial=partial) == terms
    assert pacing().usual == Terms(1, 20)


@pytest.mark.parametrize(
    ("linger_ms", "budgets_ms", "wait_ms"),
    [
        (5, [50.0], 5),
        (5, [49.9], 4),  # of 4.99
        (5, [200.0, 20.0, 100.0], 2),  # a tenth of the smallest
        (7, [1000.0], 7),
        (2000, [1000.0], 100),
    ],
)
def test_gathering_takes_a_tenth_of_the_smallest_budget_at_most(
    linger_ms: int, budgets_ms: list[float], wait_ms: int
) -> None:
    assert pacing(*budgets_ms, fetch_linger_ms=linger_ms).after(2, partial=False).wait_ms == wait_ms


@pytest.mark.parametrize(("linger_ms", "budget_ms"), [(0, 50.0), (5, 9.9)])
def test_without_a_millisecond_for_it_nothing_is_gathered(linger_ms: int, budget_ms: float) -> None:
    assert pacing(budget_ms, fetch_linger_ms=linger_ms).after(100, partial=False) == Terms(1, 20)


def test_what_one_partition_may_bring_is_enough() -> None:
    """Else a backlog in one partition alone would be read with a pause before each answer."""
    small = pacing(max_partition_fetch_bytes=32_768)
    assert small.after(100, partial=False) == Terms(32_768, 5)


def test_a_wait_that_is_above_the_idle_one_stays() -> None:
    assert pacing(fetch_max_wait_ms=1_000).after(0, partial=False) == Terms(1, 1_000)


def load(directory: Path, kafka: str) -> Config:
    file = directory / "worker.toml"
    file.write_text(
        f'[kafka]\nbootstrap_servers = "localhost:1"\n{kafka}\n[worker]\ndrain_timeout_ms = 1000\n'
        '[[topics]]\nname = "tips"\nmodel = "m"\n'
    )
    return Config.load(file, {})


@pytest.mark.parametrize(
    ("kafka", "problem"),
    [
        ("fetch_linger_ms = -1", "-1: Expected `int` >= 0; correct it, or remove it (default 5)"),
        ("fetch_linger_ms = 10001", "10001: Expected `int` <= 10000; correct it, or remove it (default 5)"),
        ("fetch_linger_ms = 2.5", "2.5: Expected `int`, got `float`; correct it, or remove it (default 5)"),
    ],
)
def test_a_linger_that_cannot_be_is_named_with_its_remedy(tmp_path: Path, kafka: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, kafka)
    assert str(caught.value) == f"{tmp_path / 'worker.toml'}: kafka.fetch_linger_ms: {problem}"


@pytest.mark.parametrize("linger_ms", [0, 10_000])
def test_every_other_linger_is_taken(tmp_path: Path, linger_ms: int) -> None:
    limits = "request_timeout_ms = 11003\nrebalance_timeout_ms = 11002"
    assert load(tmp_path, f"fetch_linger_ms = {linger_ms}\n{limits}").kafka.fetch_linger_ms == linger_ms
