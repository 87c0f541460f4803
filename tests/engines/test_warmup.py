"""When a session is warm, on durations written by hand."""

import pytest

from engines.warmup import steady

CALM, SLOW = [1.0, 4.0], [1.0, 8.0]


@pytest.mark.parametrize(
    ("laps", "warm"),
    [
        ([], False),
        ([CALM] * 2, False),
        ([CALM] * 3, True),
        ([CALM, CALM, SLOW], False),
        ([SLOW, CALM, CALM], False),
        ([SLOW, CALM, CALM, CALM], True),
        ([SLOW] * 3, True),  # nothing was quicker: that is how long it takes
        ([[1.0, 7.9], CALM, CALM], True),
    ],
)
def test_three_laps_in_a_row_without_a_run_of_twice_the_quickest(laps: list[list[float]], warm: bool) -> None:
    assert steady(laps) is warm
