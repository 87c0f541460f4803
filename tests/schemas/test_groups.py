"""Features filled in one pass are what each of them would be by itself, whatever is refused among them."""

import json
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import groups
from schemas.decoder import Decoder
from schemas.groups import Group, Single
from schemas.spec import ModelSpec

SPEC = ModelSpec.parse(
    b"""
event = "custom"
features = [
    { name = "n0", tensor = "dense", default = 1.5 },
    { name = "n1", tensor = "dense", min = 0.0 },
    { name = "row", tensor = "dense", shape = [2] },
    { name = "n2", tensor = "dense", max = 9 },
    { name = "i0", tensor = "ids", ids = 5 },
    { name = "b0", tensor = "ids", buckets = 7 },
    { name = "i1", tensor = "ids", ids = 9, default = 8 },
    { name = "b1", tensor = "ids", buckets = 9, required = true },
    { name = "w0", tensor = "ids", vocabulary = ["a", 7], unknown = "refuse" },
    { name = "i2", tensor = "ids", dtype = "int32", min = -3 },
]
""",
    "spec.toml",
)
NUMBER = st.sampled_from([0.0, 1.0, -1.0, 9.0, 9.5, 1e300, 2**70]) | st.none()
ID = st.sampled_from([0, 1, 4, 5, 8, 9, -1, -4, 2**31, 2**64]) | st.none()
WORD = st.sampled_from(["a", "b", 7, "7", 7.0, 2**70]) | st.none()
EVENT = st.fixed_dictionaries(
    {"row": st.just([1.0, 2.0])},
    optional={
        **{name: NUMBER for name in ("n0", "n1", "n2")},
        **{name: ID for name in ("i0", "i1", "i2")},
        **{name: WORD for name in ("b0", "b1", "w0")},
    },
)
GOOD = {"row": [1.0, 2.0], "n1": 1, "n2": 2, "i0": 3, "b1": "x", "w0": "a", "i2": 4}


def alone() -> Decoder:
    """Each feature by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "FEWEST", 1000)
        decoder = Decoder(SPEC, "json")
    assert all(isinstance(filler, Single) for fillers in decoder._fills.values() for filler in fillers)
    return decoder


TOGETHER, ALONE = Decoder(SPEC, "json"), alone()


def test_what_is_alike_is_together() -> None:
    shapes = {
        tensor: sorted(len(filler._singles) if isinstance(filler, Group) else 1 for filler in fillers)
        for tensor, fillers in TOGETHER._fills.items()
    }
    assert shapes == {"dense": [1, 3], "ids": [3, 3]}, "the row is alone, numbers, looked-up words and ids are groups"


@settings(max_examples=200)
@given(st.lists(EVENT | st.just(GOOD), min_size=1, max_size=9))
def test_together_and_alone_are_the_same(events: list[dict[str, object]]) -> None:
    values = [json.dumps(event).encode() for event in events]
    one, other = TOGETHER.decode(values), ALONE.decode(values)
    assert one.positions.tolist() == other.positions.tolist()
    assert [position for position, _ in one.invalid] == [position for position, _ in other.invalid]
    for name in one.tensors:
        np.testing.assert_array_equal(one.tensors[name], other.tensors[name])


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_number_that_is_none_is_found_in_a_group(bad: float) -> None:
    """MessagePack has them; here as the decoded values that a filler gets."""
    (filler,) = (filler for filler in TOGETHER._fills["dense"] if isinstance(filler, Group))
    target = np.zeros((2, 5), np.float32)
    refused = filler.fill({"n0": [1.0, 2.0], "n1": [3.0, bad], "n2": [5.0, 6.0]}, target)
    assert [(row, error.reason) for row, error in refused.items()] == [(1, "not_finite")]
    assert target[0].tolist() == [1.0, 3.0, 0.0, 0.0, 5.0]
