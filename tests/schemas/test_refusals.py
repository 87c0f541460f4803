"""What is refused, why, and that nobody else notices."""

import math
import struct
import sys
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.decoder import Decoder
from schemas.errors import REASONS, InvalidEvent
from schemas.rows import Rows
from schemas.spec import builtin
from tests.schemas.events import SHOP, packed, shop

DECODER = Decoder(SHOP, "msgpack", max_event_bytes=4096)
GOOD = packed(shop())

BAD_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    # changes, reason, field that the detail starts with
    ({"score": ...}, "missing_field", "score"),
    ({"score": None}, "missing_field", "score"),
    ({"vector": ...}, "missing_field", "vector"),
    ({"image": None}, "missing_field", "image"),
    ({"slot": ...}, "missing_field", "slot"),
    ({"seen": ...}, "missing_field", "seen"),
    ({"plan": ...}, "missing_field", "plan"),
    ({"score": True}, "wrong_type", "score"),
    ({"score": "1.5"}, "wrong_type", "score"),
    ({"score": [1.5]}, "wrong_type", "score"),
    ({"age": {}}, "wrong_type", "age"),
    ({"count": 1.0}, "wrong_type", "count"),
    ({"count": True}, "wrong_type", "count"),
    ({"count": "1"}, "wrong_type", "count"),
    ({"slot": 1.0}, "wrong_type", "slot"),
    ({"vector": "12345678"}, "wrong_type", "vector"),
    ({"vector": [0.5, 0.5]}, "wrong_type", "vector"),
    ({"seen": 3}, "wrong_type", "seen"),
    ({"seen": [1, "2"]}, "wrong_type", "seen[1]"),
    ({"seen": [1, None]}, "wrong_type", "seen[1]"),
    ({"image": [[1, 2, 3], [4, 5, 6.5]]}, "wrong_type", "image"),
    ({"country": True}, "wrong_type", "country"),
    ({"city": ["a"]}, "wrong_type", "city"),
    ({"clicks": ["a", False]}, "wrong_type", "clicks[1]"),
    ({"id": 1.5}, "wrong_type", "id"),
    ({"at": "now"}, "wrong_type", "at"),
    ({"vector": bytes(4)}, "wrong_length", "vector"),
    ({"vector": bytes(12)}, "wrong_length", "vector"),
    ({"vector": b""}, "wrong_length", "vector"),
    ({"image": [[1, 2, 3]]}, "wrong_length", "image"),
    ({"image": [[1, 2, 3], [4, 5]]}, "wrong_length", "image"),
    ({"seen": [1] * 5}, "wrong_length", "seen"),
    ({"clicks": ["a"] * 4}, "wrong_length", "clicks"),
    ({"trail": bytes(16)}, "wrong_length", "trail"),
    ({"trail": bytes(6)}, "wrong_length", "trail"),
    ({"id": "x" * 1025}, "wrong_length", "id"),
    ({"score": math.nan}, "not_finite", "score"),
    ({"score": -math.inf}, "not_finite", "score"),
    ({"age": math.nan}, "not_finite", "age"),
    ({"vector": struct.pack("<2f", 1, math.nan)}, "not_finite", "vector[1]"),
    ({"vector": struct.pack("<2f", math.inf, 1)}, "not_finite", "vector[0]"),
    ({"city": math.nan}, "not_finite", "city"),
    ({"country": math.inf}, "not_finite", "country"),
    ({"clicks": ["a", math.nan]}, "not_finite", "clicks[1]"),
    ({"at": math.nan}, "not_finite", "at"),
    ({"until": math.inf}, "not_finite", "until"),
    ({"age": -0.5}, "out_of_range", "age"),
    ({"age": 131}, "out_of_range", "age"),
    ({"score": 1e39}, "out_of_range", "score"),
    ({"score": -sys.float_info.max}, "out_of_range", "score"),
    ({"count": 2**63}, "out_of_range", "count"),
    ({"image": [[1, 2, 3], [4, 5, 2**31]]}, "out_of_range", "image[5]"),
    ({"image": [[1, 2, 3], [4, 5, 2**63]]}, "out_of_range", "image[5]"),
    ({"slot": 10}, "out_of_range", "slot"),
    ({"slot": -1}, "out_of_range", "slot"),
    ({"seen": [0, 50]}, "out_of_range", "seen[1]"),
    ({"trail": struct.pack("<3i", 1, 50, 2)}, "out_of_range", "trail[1]"),
    ({"trail": struct.pack("<i", -1)}, "out_of_range", "trail[0]"),
    ({"id": 2**63}, "out_of_range", "id"),
    ({"at": 1e16}, "out_of_range", "at"),
    ({"until": -(2**63)}, "out_of_range", "until"),
    ({"plan": "gold"}, "unknown_value", "plan"),
    ({"plan": 1}, "unknown_value", "plan"),
]

BAD_VALUES: list[tuple[bytes | None, str]] = [
    (None, "empty"),
    (b"", "empty"),
    (GOOD + bytes(4096), "too_large"),
    (GOOD[:-1], "malformed"),
    (GOOD[: len(GOOD) // 2], "malformed"),
    (GOOD + b"\x00", "malformed"),
    (GOOD + GOOD, "malformed"),
    (GOOD.replace(b"paid", b"pa\xffd"), "malformed"),
    (b"\xc1", "malformed"),
    (packed(shop())[:1].replace(b"\x8f", b"\x8f") + b"\x91" * 3000, "wrong_type"),
    (packed(shop(extra=0))[:-1] + b"\x91" * 3000 + b"\x00", "malformed"),
    (packed([1, 2]), "wrong_type"),
    (packed(None), "wrong_type"),
    (packed({}), "missing_field"),
]


def refused(value: bytes | None, decoder: Decoder = DECODER) -> InvalidEvent:
    rows = decoder.decode([value])
    assert len(rows) == 0
    [(position, error)] = rows.invalid
    assert position == 0
    assert error.reason in REASONS and len(error.detail) <= 200
    return error


@pytest.mark.parametrize(("changes", "reason", "field"), BAD_FIELDS)
def test_a_bad_field_is_refused_by_name(changes: dict[str, Any], reason: str, field: str) -> None:
    error = refused(packed(shop(**changes)))
    assert error.reason == reason
    assert error.detail.startswith((f"{field}:", f"{field}["))


@pytest.mark.parametrize(("value", "reason"), BAD_VALUES)
def test_a_bad_body_is_refused(value: bytes | None, reason: str) -> None:
    assert refused(value).reason == reason


@pytest.mark.parametrize(
    ("text", "reason", "field"),
    [
        (b'{"score": NaN}', "malformed", "event"),
        (b'{"score": 1e999}', "not_finite", "score"),
        (b'{"count": -1e999}', "not_finite", "count"),
        (b'{"city": 1e999}', "not_finite", "city"),
        (b'{"score": ' + b"9" * 400 + b"}", "not_finite", "score"),
        (b'{"count": ' + b"9" * 30 + b"}", "out_of_range", "count"),
        (b'{"count": ' + b"9" * 3000 + b"}", "out_of_range", "count"),
        (b'{"slot": -' + b"9" * 30 + b"}", "out_of_range", "slot"),
        (b'{"at": ' + b"9" * 400 + b"}", "not_finite", "at"),
        (b'{"id": ' + b"9" * 30 + b"}", "out_of_range", "id"),
        (b'{"vector": "AAAA"}', "wrong_length", "vector"),
        (b'{"vector": "!!!!!!!!!!!="}', "malformed", "vector"),
        (b'{"city": "\\ud800"}', "malformed", "event"),
        (b'{"city": "\xff"}', "malformed", "event"),
        (b'{"x": ' + b"[" * 3000 + b"}", "malformed", "event"),
        (b"[]", "wrong_type", "event"),
        (b'{"count": ' + b"9" * 5000 + b"}", "out_of_range", "count"),
        (b"\xef\xbb\xbf{}", "malformed", "event"),
    ],
)
def test_bad_json_is_refused(text: bytes, reason: str, field: str) -> None:
    good = msgspec.json.encode(shop())
    if text.startswith(b"{") and text.endswith(b"}"):
        text = good[:-1] + b"," + text[1:]  # the later of two equal names counts
    error = refused(text, Decoder(SHOP, "json"))
    assert (error.reason, error.detail.partition(":")[0]) == (reason, field)


def test_a_second_json_document_is_refused() -> None:
    assert refused(msgspec.json.encode(shop()) + b" {}", Decoder(SHOP, "json")).reason == "malformed"


def test_a_record_of_100_mb_is_refused_unread() -> None:
    error = refused(bytes(100 << 20), Decoder(SHOP, "msgpack"))
    assert error.reason == "too_large"
    assert error.detail == "event: 104857600 bytes, more than max_event_bytes = 1048576"


def test_the_limit_is_inclusive() -> None:
    assert len(Decoder(SHOP, "msgpack", max_event_bytes=len(GOOD)).decode([GOOD])) == 1
    assert refused(GOOD, Decoder(SHOP, "msgpack", max_event_bytes=len(GOOD) - 1)).reason == "too_large"


@pytest.mark.parametrize(
    ("position", "value", "reason", "field"),
    [
        (0, 5, "wrong_type", "event_id"),
        (1, True, "wrong_type", "room_id"),
        (5, -1, "out_of_range", "gift_count"),
        (6, math.nan, "not_finite", "price"),
        (6, "1", "wrong_type", "price"),
        (8, None, "missing_field", "time_ms"),
        (8, 2**63, "out_of_range", "time_ms"),
        (10, bytes(124), "wrong_length", "features"),
        (10, struct.pack("<32f", *[0] * 31, math.nan), "not_finite", "features[31]"),
    ],
)
def test_a_bad_tipping_event_is_refused_by_field_name(position: int, value: object, reason: str, field: str) -> None:
    event: list[object] = ["t1", 1, 2, 3, 4, 5, 1.5, 6, 1700000000000, None, bytes(128)]
    decoder = Decoder(builtin("tipping"), "msgpack")
    assert len(decoder.decode([packed(event)])) == 1
    event[position] = value
    error = refused(packed(event), decoder)
    assert (error.reason, error.detail.partition(":")[0]) == (reason, field)


def test_a_shortened_tipping_event_names_the_first_field_that_it_needs() -> None:
    # A viewer and a gift may be missing: they are hashed, and index 0 stands for it.
    error = refused(packed(["t1", 1, 2]), Decoder(builtin("tipping"), "msgpack"))
    assert (error.reason, error.detail.partition(":")[0]) == ("missing_field", "gift_count")


def good_events() -> st.SearchStrategy[bytes]:
    text = st.text(max_size=8)
    return st.builds(
        lambda **fields: packed(shop(**{name: value for name, value in fields.items() if value is not ...})),
        id=text | st.integers(-(2**63), 2**63 - 1) | st.none(),
        age=st.just(...) | st.none() | st.floats(0, 130),
        score=st.floats(-(2.0**126), 2.0**126),
        vector=st.binary(min_size=8, max_size=8).filter(lambda raw: np.isfinite(np.frombuffer(raw, "<f4")).all()),
        count=st.integers(-(2**63), 2**63 - 1),
        country=st.none() | text | st.integers(0, 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False),
        city=st.none() | text | st.integers(0, 9) | st.sampled_from([0.0, 1.0, 2.5]),
        seen=st.lists(st.integers(0, 49), max_size=4),
        clicks=st.none() | st.lists(text | st.integers(0, 9), max_size=3),
        trail=st.none() | st.lists(st.integers(0, 49), max_size=3).map(lambda ids: struct.pack(f"<{len(ids)}i", *ids)),
    )


def bad_events() -> st.SearchStrategy[bytes | None]:
    return st.sampled_from(
        [packed(shop(**changes)) for changes, _, _ in BAD_FIELDS] + [value for value, _ in BAD_VALUES]
    )


def same(rows: Rows, row: int, alone: Rows) -> None:
    assert rows.keys[row] == alone.keys[0]
    for name, tensor in rows.tensors.items():
        np.testing.assert_array_equal(tensor[row], alone.tensors[name][0])
    np.testing.assert_array_equal(rows.event_time_ms[row], alone.event_time_ms[0])
    np.testing.assert_array_equal(rows.deadline_ms[row], alone.deadline_ms[0])


@given(st.lists(good_events() | bad_events(), max_size=12))
def test_any_mix_of_good_and_bad_is_what_each_is_alone(values: list[bytes | None]) -> None:
    rows = DECODER.decode(values)
    positions = rows.positions.tolist()
    assert sorted([*positions, *(position for position, _ in rows.invalid)]) == list(range(len(values)))
    assert positions == sorted(positions)
    assert [position for position, _ in rows.invalid] == sorted(position for position, _ in rows.invalid)
    for spec in SHOP.tensors:
        tensor = rows.tensors[spec.name]
        assert (tensor.shape, tensor.dtype) == ((len(rows), *spec.shape), np.dtype(spec.dtype))
        assert tensor.flags.c_contiguous and tensor.flags.writeable
    for row, position in enumerate(positions):
        same(rows, row, Decoder(SHOP, "msgpack", max_event_bytes=4096).decode([values[position]]))
    for position, error in rows.invalid:
        alone = DECODER.decode([values[position]]).invalid[0][1]
        assert (error.reason, error.detail) == (alone.reason, alone.detail)


@pytest.mark.parametrize("place", [0, 1, 499, 998, 999])
@pytest.mark.parametrize(("changes", "reason", "field"), BAD_FIELDS[::7])
def test_one_bad_event_in_a_thousand(place: int, changes: dict[str, Any], reason: str, field: str) -> None:
    values: list[bytes | None] = [packed(shop(count=i)) for i in range(1000)]
    values[place] = packed(shop(**changes))
    rows = DECODER.decode(values)
    assert [(position, error.reason) for position, error in rows.invalid] == [(place, reason)]
    assert rows.tensors["count"].ravel().tolist() == [i for i in range(1000) if i != place]


def test_chunks_longer_than_a_block_keep_order_and_positions() -> None:
    values: list[bytes | None] = [packed(shop(id=i, count=i)) for i in range(1600)]
    bad = {3: (None, "empty"), 511: (packed(shop(slot=-1)), "out_of_range"), 512: (b"\xc1", "malformed")}
    bad |= {1200: (packed(shop(at=math.nan)), "not_finite"), 1599: (packed(shop(plan="x")), "unknown_value")}
    for position, (value, _) in bad.items():
        values[position] = value
    rows = DECODER.decode(values)
    good = [i for i in range(1600) if i not in bad]
    assert [(position, error.reason) for position, error in rows.invalid] == [(i, bad[i][1]) for i in sorted(bad)]
    assert rows.keys == rows.positions.tolist() == rows.tensors["count"].ravel().tolist() == good
    assert len(rows.event_time_ms) == len(rows.deadline_ms) == len(good)
