"""Integers that no machine word holds: JSON has them, and msgpack reaches up to 2**64 - 1."""

import json

import msgspec
import pytest

from schemas.decoder import Decoder
from schemas.spec import ModelSpec

SPEC = ModelSpec.parse(
    b"""
event = "custom"
features = [
    { name = "wide", dtype = "int64" },
    { name = "narrow", dtype = "int32" },
    { name = "id", ids = 10 },
    { name = "list", dtype = "int64", shape = [2] },
    { name = "number" },
    { name = "bucket", buckets = 9 },
]
""",
    "spec.toml",
)
TIP = ModelSpec.parse(b'event = "tipping"\nfeatures = [{ name = "gift_count" }]', "spec.toml")
GOOD = {"wide": 2**63 - 1, "narrow": 1, "id": 1, "list": [1, -(2**63)], "number": 1.0, "bucket": 1}
TOO_LARGE = (2**63, -(2**63) - 1, 2**64, 10**30, 10**308)


@pytest.mark.parametrize("value", TOO_LARGE)
@pytest.mark.parametrize("field", ["wide", "narrow", "id", "list"])
def test_an_integer_beyond_its_field_is_refused_and_its_neighbours_are_not(field: str, value: int) -> None:
    bad = GOOD | {field: [1, value] if field == "list" else value}
    rows = Decoder(SPEC, "json").decode([json.dumps(body).encode() for body in (GOOD, bad, GOOD)])
    assert rows.positions.tolist() == [0, 2]
    ((position, error),) = rows.invalid
    assert (position, error.reason) == (1, "out_of_range")
    assert error.detail.startswith("list[1]: " if field == "list" else f"{field}: ")
    assert rows.tensors["wide"].tolist() == [[2**63 - 1]] * 2


@pytest.mark.parametrize("value", TOO_LARGE)
def test_an_integer_field_of_a_built_in_event_that_the_model_reads_as_a_number(value: int) -> None:
    tip = {"event_id": "e", "room_id": value, "streamer_id": 1, "viewer_id": 1, "gift_id": 1, "gift_count": 1}
    tip |= {"price": 1.0, "combo": 1, "time_ms": 1, "features": ""}
    rows = Decoder(TIP, "json").decode([json.dumps(body).encode() for body in (tip, tip | {"gift_count": value})])
    assert rows.positions.tolist() == [0], "an id that is not read may be anything"
    assert rows.invalid[0][1].reason == "out_of_range"


def test_the_largest_integer_of_msgpack() -> None:
    bodies = [GOOD, GOOD | {"wide": 2**64 - 1}, GOOD | {"id": 2**63}]
    rows = Decoder(SPEC, "msgpack").decode([msgspec.msgpack.encode(body) for body in bodies])
    assert rows.positions.tolist() == [0]
    assert [error.reason for _, error in rows.invalid] == ["out_of_range", "out_of_range"]


@pytest.mark.parametrize("value", TOO_LARGE[:-1])
def test_a_number_or_a_category_may_be_as_large(value: int) -> None:
    body = json.dumps(GOOD | {"number": value, "bucket": value}).encode()
    rows = Decoder(SPEC, "json").decode([body])
    assert rows.tensors["number"].tolist() == [[pytest.approx(float(value))]]
    assert 1 <= rows.tensors["bucket"][0, 0] < 9
