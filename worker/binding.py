"""Which lane each partition is bound to. Pure."""

from collections.abc import Mapping
from math import ceil

MUCH_BETTER = 1.25
"""A new binding is taken when the old one's fullest lane has this many times the new one's load."""


def bind(rates: Mapping[int, float], *, lanes: int, lane_rate: float, bound: Mapping[int, int]) -> dict[int, int]:
    """Partition -> lane, from rates in rows a second. `bound` is the binding in force (empty: none).

    `lane_rate` is the rate at which one lane fills its batches within the deadline budget. Only as many lanes are used
    as the load can fill, so that sparse partitions share one and their rows fill one batch, while a partition faster
    than `lane_rate` has a lane of its own while there are enough. Longest processing time first (Graham, 1969). The
    binding in force stays unless it uses more lanes than that or is much worse.
    """
    used = min(lanes, max(1, ceil(sum(rates.values()) / lane_rate)))
    load = [0.0] * used
    binding: dict[int, int] = {}
    for partition, rate in sorted(rates.items(), key=lambda item: (-item[1], item[0])):
        lane = min(range(used), key=load.__getitem__)
        binding[partition] = lane
        load[lane] += rate
    if bound.keys() == rates.keys() and len(set(bound.values())) <= used:
        now = [0.0] * lanes
        for partition, rate in rates.items():
            now[bound[partition]] += rate
        if max(now) <= MUCH_BETTER * max(load):
            return dict(bound)
    return binding
