from hypothesis import given
from hypothesis import strategies as st

from worker.binding import bind

rates = st.dictionaries(st.integers(0, 40), st.floats(0, 1e6), min_size=1, max_size=30)


def test_sparse_partitions_share_one_lane() -> None:
    assert bind(dict.fromkeys(range(6), 10.0), lanes=4, lane_rate=1000.0, bound={}) == dict.fromkeys(range(6), 0)


def test_hot_partitions_get_lanes_of_their_own() -> None:
    binding = bind({0: 900.0, 1: 950.0, 2: 5.0, 3: 5.0}, lanes=4, lane_rate=1000.0, bound={})
    assert binding[1] == 0
    assert binding[0] == 1
    assert binding[2] == binding[3] == 1, "the two sparse ones sit with the less loaded hot one"


def test_balanced_partitions_stay_where_they_are() -> None:
    bound = {0: 1, 1: 0, 2: 1, 3: 0}
    assert bind({0: 500.0, 1: 510.0, 2: 490.0, 3: 505.0}, lanes=2, lane_rate=1000.0, bound=bound) == bound


@given(rates, st.integers(1, 8), st.floats(1.0, 1e5))
def test_every_partition_has_a_lane_and_none_holds_twice_the_fair_share_and_one_more(
    rates: dict[int, float], lanes: int, lane_rate: float
) -> None:
    binding = bind(rates, lanes=lanes, lane_rate=lane_rate, bound={})
    assert binding.keys() == rates.keys()
    load = [sum(rates[p] for p, lane in binding.items() if lane == index) for index in range(lanes)]
    used = max(binding.values()) + 1
    assert used <= lanes
    assert max(load) <= sum(rates.values()) / used + max(rates.values()) + 1e-6
