import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.decoder import Decoder
from schemas.encoder import Encoder
from schemas.errors import InvalidEvent
from schemas.event import AdEvent, JsonAdEvent
from schemas.spec import ModelSpec, builtin
from schemas.wire import Format
from tests.schemas.events import SHOP, shop

FORMATS: tuple[Format, ...] = ("msgpack", "json")
AD = {
    "request_id": "r1",
    "user_id": "7",
    "ad_id": 8,
    "placement_id": 9.0,
    "time_ms": "1700000000000",
    "numeric": [0.5] * 13,
    "categorical": ["3"] * 26,
    "sequence": [5, 6],
}


@pytest.mark.parametrize("format", FORMATS)
def test_an_event_survives_being_encoded_and_decoded(format: Format) -> None:
    rows = Decoder(SHOP, format).decode([Encoder(SHOP, format).encode(shop())])
    assert rows.invalid == []
    assert rows.keys == ["e1"]
    assert rows.tensors["dense"].tolist() == [[41.5, -2.0, 0.5, -0.25]]
    assert rows.tensors["trail"].tolist() == [[3, 4, 0]]


@pytest.mark.parametrize("format", FORMATS)
def test_the_base64_of_an_empty_sequence_is_one_and_other_empty_text_is_a_missing_value(format: Format) -> None:
    """As a JSON event of the topic says it: a user without a history can be scored."""
    spec = builtin("ad")
    encode, decode = Encoder(spec, format).encode, Decoder(spec, format).decode
    rows = decode([encode({**AD, "sequence": ""}), encode({**AD, "numeric": ""}), encode({**AD, "sequence": None})])
    assert (rows.positions.tolist(), rows.tensors["hist"].tolist()) == ([0], [[0] * 50])
    assert ["missing_field" in str(error) for _, error in rows.invalid] == [True, True]


@pytest.mark.parametrize("format", FORMATS)
def test_text_of_a_table_becomes_what_the_field_is(format: Format) -> None:
    text = shop(
        at="1700000000000",
        age="41.5",
        score="-2",
        count="7.0",
        slot="3",
        seen=["1", "2"],
        vector=[0.5, -0.25],
        city="",
        until="",
    )
    rows = Decoder(SHOP, format).decode([Encoder(SHOP, format).encode(text)])
    assert rows.invalid == []
    assert rows.tensors["dense"].tolist() == [[41.5, -2.0, 0.5, -0.25]]
    assert rows.tensors["count"].tolist() == [[7]]
    assert rows.tensors["ids"][0, 2:].tolist() == [0, 3]
    assert rows.tensors["seen"].tolist() == [[1, 2, 0, 0]]
    assert rows.event_time_ms[0] == 1700000000000 and np.isnan(rows.deadline_ms[0])


@pytest.mark.parametrize("format", FORMATS)
def test_raw_elements_may_be_base64_as_in_a_json_event(format: Format) -> None:
    rows = Decoder(SHOP, format).decode([Encoder(SHOP, format).encode(shop(vector="AAAAPwAAgL4="))])
    assert rows.invalid == []
    assert rows.tensors["dense"].tolist() == [[41.5, -2.0, 0.5, -0.25]]


@pytest.mark.parametrize("format", FORMATS)
def test_a_json_array_in_a_cell_is_the_list(format: Format) -> None:
    cells = {"clicks": '["a", 7]', "seen": ' [1, "2"]', "image": "[[1,2,3],[4,5,6]]", "vector": "[0.5,-0.25]"}
    rows = Decoder(SHOP, format).decode([Encoder(SHOP, format).encode(shop() | cells)])
    assert rows.invalid == []
    wanted = Decoder(SHOP, format).decode([Encoder(SHOP, format).encode(shop())])
    assert {name: tensor.tolist() for name, tensor in rows.tensors.items()} == {
        name: tensor.tolist() for name, tensor in wanted.tensors.items()
    }


@pytest.mark.parametrize("cell", ["HUB1", "HUB1;HUB2", "HUB1,HUB2", '{"0": "HUB1"}', {"HUB1": 1}, b"HUB1", 5])
def test_what_is_no_list_is_refused_with_the_ways_to_give_one(cell: object) -> None:
    with pytest.raises(InvalidEvent) as caught:
        Encoder(SHOP, "json").encode(shop(clicks=cell))
    assert caught.value.detail == (
        f"clicks: {cell!r} cannot be encoded (a list is needed: a JSON array in the cell, JSONL, or one column per"
        " element with the same name)"
    )


def test_a_builtin_event_is_encoded_as_its_struct() -> None:
    spec = builtin("ad")
    blobs = (struct.pack("<13f", *[0.5] * 13), struct.pack("<26i", *[3] * 26), struct.pack("<2i", 5, 6))
    values = ("r1", 7, 8, 9, 1700000000000, None, *blobs)
    assert msgspec.msgpack.decode(Encoder(spec, "msgpack").encode(AD), type=AdEvent) == AdEvent(*values)
    expected = msgspec.json.decode(msgspec.json.encode(JsonAdEvent(*values)))
    del expected["deadline_ms"]
    assert msgspec.json.decode(Encoder(spec, "json").encode(AD)) == expected
    assert len(Decoder(spec, "json").decode([Encoder(spec, "json").encode(AD)])) == 1


@pytest.mark.parametrize(
    ("format", "changes", "problem"),
    [
        (
            "msgpack",
            {"age": 10**30},
            "age: 1000000000000000000000000000000 cannot be encoded (msgpack has no such integer)",
        ),
        ("msgpack", {"clicks": ["a", -(2**63) - 1]}, "clicks: "),
        ("msgpack", {"at": 2**64}, "at: "),
        ("json", {"age": "nan"}, "age: 'nan' cannot be encoded (JSON has no such number)"),
        ("json", {"age": -math.inf}, "age: "),
        ("json", {"at": "1e999"}, "at: "),
    ],
)
def test_a_number_that_the_format_has_not_is_refused(format: Format, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        Encoder(SHOP, format).encode(shop(**changes))
    assert caught.value.detail.startswith(problem)


def test_columns_that_the_spec_does_not_name_are_left_out() -> None:
    spec = ModelSpec.parse(b'{"event":"custom","features":[{"name":"a"}]}', "spec.json")
    assert Encoder(spec, "json").encode({"label": 1, "a": "2.5"}) == b'{"a":2.5}'


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"age": "old"}, "age"),
        ({"age": True}, "age"),
        ({"count": "1.5"}, "count"),
        ({"count": True}, "count"),
        ({"seen": "12"}, "seen"),
        ({"seen": 5}, "seen"),
        ({"seen": "[1, 2"}, "seen"),
        ({"image": "[1, 2, 3]"}, "image"),
        ({"clicks": ["a", None]}, "clicks"),
        ({"clicks": [["a"]]}, "clicks"),
        ({"city": ["Lyon", "Lyon"]}, "city"),
        ({"city": True}, "city"),
        ({"vector": "12"}, "vector"),
        ({"trail": [2**31]}, "trail"),
        ({"at": "yesterday"}, "at"),
    ],
)
def test_a_value_that_the_field_cannot_hold_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        Encoder(SHOP, "msgpack").encode(shop(**changes))
    assert caught.value.reason == "wrong_type"
    assert caught.value.detail.startswith(f"{field}: ")
