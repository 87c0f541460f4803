"""Synthetic event streams with a known signal, for the demo, the trainer and tests. Numpy only.

The columns of `tips` are those of a live room's gift log (KuaiLive: streamer, room, viewer, gift, price, time). What is
planted, and is to be learnt, stands in the docstrings; the rest is noise.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Labelled = tuple[dict[str, object], int]

TIP_FEATURES: Final = 32
STREAMERS: Final = 300
VIEWERS: Final = 3000
GIFTS: Final = 40
ADS: Final = 120
AD_TOPICS: Final = 12
HISTORY: Final = 50
CATEGORIES: Final = 100
_CHUNK: Final = 1024


def tips(n: int, seed: int = 0, *, start_ms: int = 1_760_000_000_000) -> Iterator[Labelled]:
    """n tips as fields of `TippingEvent`, each with 1 when the viewer tips again soon, else 0 (about 30 %).

    Linear in what a regression sees: the viewer's generosity, the streamer's charm, the gift's price, a running combo.
    Not linear: the product of the first two features, and the distance of the third one from 0.
    """
    rng = np.random.default_rng(seed)
    generosity, charm = rng.normal(0, 0.7, VIEWERS), rng.normal(0, 0.5, STREAMERS)
    prices = np.round(np.exp(rng.normal(2.5, 1.5, GIFTS)), 1)
    time_ms = float(start_ms)
    for first in range(0, n, _CHUNK):
        size = min(_CHUNK, n - first)
        viewer, streamer, gift = (_popular(rng, count, size) for count in (VIEWERS, STREAMERS, GIFTS))
        count, combo = rng.geometric(0.5, size), rng.geometric(0.4, size) - 1
        features = rng.standard_normal((size, TIP_FEATURES)).astype("<f4")
        times = time_ms + np.cumsum(rng.exponential(5.0, size))
        time_ms = float(times[-1])
        logit = -1.9 + generosity[viewer] + charm[streamer] + 0.15 * np.log1p(prices[gift]) + 0.2 * np.minimum(combo, 4)
        logit += 1.2 * features[:, 0] * features[:, 1] + 0.8 * (np.abs(features[:, 2]) - 0.8)
        labels = rng.random(size) < 1 / (1 + np.exp(-logit))
        for i in range(size):
            yield (
                {
                    "event_id": f"tip-{seed}-{first + i}",
                    "room_id": 10_000 + int(streamer[i]),
                    "streamer_id": int(streamer[i]),
                    "viewer_id": int(viewer[i]),
                    "gift_id": int(gift[i]),
                    "gift_count": int(count[i]),
                    "price": float(prices[gift[i]]),
                    "combo": int(combo[i]),
                    "time_ms": int(times[i]),
                    "deadline_ms": None,
                    "features": features[i].tobytes(),
                },
                int(labels[i]),
            )


def ads(n: int, seed: int = 0, *, start_ms: int = 1_760_000_000_000) -> Iterator[Labelled]:
    """n ad requests as fields of `AdEvent`, each with 1 for a click, else 0 (about 25 %).

    A user looks at ads of a few topics. A click is likely when this very ad stands in the user's history, which no sum
    over the ads of the history can tell. The first two numbers and the first category count a little, linearly.
    """
    rng = np.random.default_rng(seed)
    topic = np.arange(ADS) % AD_TOPICS
    by_topic = [np.flatnonzero(topic == t) for t in range(AD_TOPICS)]
    appeal = rng.normal(0, 0.4, CATEGORIES)
    time_ms = float(start_ms)
    for first in range(0, n, _CHUNK):
        size = min(_CHUNK, n - first)
        user, ad, placement = rng.integers(0, 2000, size), _popular(rng, ADS, size), rng.integers(0, 8, size)
        interests = rng.integers(0, AD_TOPICS, (size, 3))
        # Half of the ads are shown to users whom they concern, as a targeting system would.
        aimed = rng.random(size) < 0.5
        interests[aimed, 0] = topic[ad[aimed]]
        lengths = rng.integers(0, HISTORY + 1, size)
        numeric = np.exp(rng.standard_normal((size, 13))).astype("<f4")
        categorical = (rng.random((size, 26)) ** 3 * CATEGORIES).astype("<i4")
        times = time_ms + np.cumsum(rng.exponential(5.0, size))
        time_ms = float(times[-1])
        for i in range(size):
            history = _history(rng, by_topic, interests[i], int(lengths[i]))
            wanted = bool((history == ad[i]).any())
            logit = -2.4 + 2.6 * wanted + 0.3 * np.log(numeric[i, 0] / numeric[i, 1]) + appeal[categorical[i, 0]]
            yield (
                {
                    "request_id": f"ad-{seed}-{first + i}",
                    "user_id": int(user[i]),
                    "ad_id": 1 + int(ad[i]),
                    "placement_id": int(placement[i]),
                    "time_ms": int(times[i]),
                    "deadline_ms": None,
                    "numeric": numeric[i].tobytes(),
                    "categorical": categorical[i].tobytes(),
                    "sequence": (1 + history).astype("<i4").tobytes(),
                },
                int(rng.random() < 1 / (1 + np.exp(-logit))),
            )


def _popular(rng: np.random.Generator, count: int, size: int) -> NDArray[np.int64]:
    """[size] draws from 0..count-1, low ones more often: the shape of every live platform."""
    return (count * rng.random(size) ** 2).astype(np.int64)


def _history(
    rng: np.random.Generator, by_topic: list[NDArray[Any]], interests: NDArray[Any], length: int
) -> NDArray[np.int64]:
    """[length] ads (counted from 0) of the user's topics."""
    topics = interests[rng.integers(0, len(interests), length)]
    picks = rng.integers(0, ADS // AD_TOPICS, length)
    return np.array([by_topic[t][p] for t, p in zip(topics, picks, strict=True)], np.int64)
