"""Routes: budget, segments, warmth, lateness; every row goes one way."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.rows import Tensors
from worker.activity import Activity
from worker.route import Candidate, Route, RoutePolicy, Router, SegmentRule
from worker.service_time import ServiceTime


def engine(name: str, seconds: float = 0.0, *, warm: bool = True, refused: str | None = None) -> Candidate:
    """An engine predicted to take `seconds` a batch, whatever its size."""
    return Candidate(name, ServiceTime(prior=(max(seconds, 1e-9) / 1.5, 0.0)), warm, refused)


DEEP, LIGHT = engine("trt", 0.010), engine("light", 0.001)
ADS = RoutePolicy(above_s={"trt": 0.050})
MS = 0.001


def split(policy: RoutePolicy, chain: list[Candidate], budgets_ms: list[float], **tensors: list[object]) -> object:
    arrays: Tensors = {name: np.array(rows, dtype=np.int32) for name, rows in tensors.items()}
    return plain(Router(policy).split(chain, 100.0 + np.array(budgets_ms) * MS, arrays, 100.0))


def plain(routes: list[Route]) -> list[tuple[list[int], str | None, str | None]]:
    return [(route.rows.tolist(), route.engine, route.reason) for route in routes]


def test_more_than_fifty_milliseconds_goes_deep_and_the_others_light() -> None:
    assert split(ADS, [DEEP, LIGHT], [80.0, 49.0, 50.5, 1.0, -5.0]) == [
        ([0, 2], "trt", None),
        ([1, 3, 4], "light", "trt:budget"),
    ]


def test_one_engine_for_all_is_one_route() -> None:
    assert split(ADS, [DEEP, LIGHT], [80.0, 90.0]) == [([0, 1], "trt", None)]


def test_without_a_threshold_the_predicted_time_decides() -> None:
    deadlines = np.array([0.016, 0.014])
    routes = Router(RoutePolicy()).split([DEEP, LIGHT], deadlines, {}, 0.0, after_s=0.005)
    assert plain(routes) == [([0], "trt", None), ([1], "light", "trt:budget")]


def test_each_engine_of_the_chain_takes_what_it_has_time_for() -> None:
    chain = [DEEP, engine("ort", 0.004), LIGHT]
    assert split(RoutePolicy(), chain, [20.0, 5.0, 2.0]) == [
        ([0], "trt", None),
        ([1], "ort", "trt:budget"),
        ([2], "light", "trt:budget"),
    ]


def test_until_warm_light_answers() -> None:
    assert split(ADS, [engine("trt", warm=False), LIGHT], [80.0]) == [([0], "light", "trt:cold")]


def test_an_open_breaker_passes_on() -> None:
    chain = [engine("trt", refused="latency"), engine("ort", 0.001), LIGHT]
    assert split(ADS, chain, [80.0]) == [([0], "ort", "trt:breaker:latency")]


def test_the_last_engine_answers_even_when_it_is_cold_or_refused() -> None:
    assert split(ADS, [engine("light", warm=False, refused="errors")], [80.0]) == [([0], "light", None)]


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ("score", [([0], "trt", None), ([1], "light", "trt:budget")]),
        ("light", [([1], "light", "late:light"), ([0], "trt", None)]),
        ("skip", [([1], None, "late:skip"), ([0], "trt", None)]),
        ("dead_letter", [([1], None, "late:dead_letter"), ([0], "trt", None)]),
    ],
)
def test_late_rows_go_by_the_policy(late: str, expected: object) -> None:
    policy = RoutePolicy(above_s={"trt": 0.050}, late=late)  # type: ignore[arg-type]
    assert split(policy, [DEEP, LIGHT], [80.0, 0.0]) == expected


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        ("score", [([0], "trt", None), ([1, 2], "light", "trt:budget")]),
        ("light", [([2], "light", "late:light"), ([0], "trt", None), ([1], "light", "trt:budget")]),
        ("skip", [([1, 2], None, "late:skip"), ([0], "trt", None)]),
    ],
)
def test_rows_that_nobody_can_score_in_time_are_late_where_late_rows_are_not_scored(
    late: str, expected: object
) -> None:
    policy = RoutePolicy(above_s={"trt": 0.050}, late=late)  # type: ignore[arg-type]
    budgets = np.array([80.0, 3.0, -1.0]) * MS
    routes = Router(policy).split([DEEP, LIGHT], budgets, {}, 0.0, least_s=0.003)
    assert [(route.rows.tolist(), route.engine, route.reason) for route in routes] == expected


VIP = SegmentRule(name="vip", engine="vip", tensor="ids", column=1, values=frozenset({7, 8}))


def test_a_segment_has_its_own_model_which_is_not_for_the_others() -> None:
    policy = RoutePolicy(segments=(VIP,))
    routes = split(policy, [engine("vip"), DEEP, LIGHT], [80.0] * 3, ids=[[0, 7], [7, 0], [0, 8]])
    assert routes == [([0, 2], "vip", "segment:vip"), ([1], "trt", None)]


def test_a_segment_whose_model_is_refused_goes_like_the_others() -> None:
    policy = RoutePolicy(segments=(VIP,))
    chain = [engine("vip", refused="errors"), DEEP, LIGHT]
    assert split(policy, chain, [80.0], ids=[[0, 7]]) == [([0], "trt", None)]


def test_users_with_few_events_are_the_long_tail() -> None:
    rule = SegmentRule(name="tail", engine="tail", tensor="user", fewer_than=3)
    activity = Activity(100, half_life_s=10.0)
    router = Router(RoutePolicy(segments=(rule,)), {"tail": activity})
    activity.see(np.array([5, 5, 5, 5, 6]), 100.0)
    tensors: Tensors = {"user": np.array([5, 6, 9], dtype=np.int64)}
    chain = [DEEP, engine("tail"), LIGHT]
    assert plain(router.split(chain, np.full(3, 100.08), tensors, 100.0)) == [
        ([1, 2], "tail", "segment:tail"),
        ([0], "trt", None),
    ]
    assert plain(router.split(chain, np.full(3, 110.08), tensors, 110.0))[0][0] == [0, 1, 2]  # 5 is at 2 events now


def test_a_segment_by_a_column_that_the_model_has_not_names_what_it_has() -> None:
    policy = RoutePolicy(segments=(VIP,))
    with pytest.raises(ValueError, match=r"segment vip: tensor 'ids' column 1: .* it has ids int32\[1\]"):
        split(policy, [engine("vip"), LIGHT], [80.0], ids=[[7]])


def test_segments_need_one_criterion_and_its_activity() -> None:
    with pytest.raises(ValueError, match="exactly one of"):
        SegmentRule(name="x", engine="e", tensor="ids")
    with pytest.raises(ValueError, match="needs the activity"):
        Router(RoutePolicy(segments=(SegmentRule(name="x", engine="e", tensor="ids", fewer_than=3),)))


@given(
    st.lists(st.floats(-100, 200), max_size=40),
    st.lists(
        st.tuples(st.floats(0.0001, 0.1), st.booleans(), st.sampled_from([None, "errors"])), min_size=1, max_size=4
    ),
    st.sampled_from(["score", "light", "skip", "dead_letter"]),
    st.data(),
)
def test_every_row_goes_exactly_one_way(
    budgets: list[float], chain: list[tuple[float, bool, str | None]], late: str, data: st.DataObject
) -> None:
    candidates = [engine(f"e{i}", s, warm=w, refused=r) for i, (s, w, r) in enumerate(chain)]
    ids = data.draw(st.lists(st.integers(0, 3), min_size=len(budgets), max_size=len(budgets)))
    rule = SegmentRule(name="s", engine="e1", tensor="ids", values=frozenset({1}))
    policy = RoutePolicy(late=late, segments=(rule,))  # type: ignore[arg-type]
    routes = Router(policy).split(
        candidates, np.array(budgets, dtype=np.float64) * MS, {"ids": np.array(ids, dtype=np.int32)}, 0.0
    )
    rows = np.concatenate([route.rows for route in routes]) if routes else np.empty(0)
    assert sorted(rows.tolist()) == list(range(len(budgets)))
    usable = {c.engine for c in candidates[:-1] if c.warm and c.refused is None} | {candidates[-1].engine, None}
    assert {route.engine for route in routes} <= usable
    assert all(len(route.rows) and (np.diff(route.rows) > 0).all() for route in routes)
