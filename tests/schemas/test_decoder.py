import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.decoder import Decoder
from schemas.event import AdEvent, JsonTippingEvent, TippingEvent
from schemas.rows import Rows
from schemas.spec import ModelSpec, builtin
from tests.schemas.events import SHOP, packed, shop
from tests.schemas.reference import bucket

DECODER = Decoder(SHOP, "msgpack")


def one(**changes: Any) -> Rows:
    rows = DECODER.decode([packed(shop(**changes))])
    assert rows.invalid == []
    return rows


def test_a_custom_event_becomes_the_tensors_of_its_spec() -> None:
    rows = one()
    assert {name: tensor.tolist() for name, tensor in rows.tensors.items()} == {
        "dense": [[41.5, -2.0, 0.5, -0.25]],
        "count": [[2**40]],
        "image": [[[1, 2, 3], [4, 5, 6]]],
        "ids": [[1, 2, bucket("city", "Luleå", 100), 9]],
        "seen": [[1, 2, 0, 0]],
        "clicks": [[bucket("city", "a", 100), bucket("city", "7", 100), 0]],
        "trail": [[3, 4, 0]],
    }
    assert {name: str(tensor.dtype) for name, tensor in rows.tensors.items()} == {
        "dense": "float32",
        "count": "int64",
        "image": "int32",
        "ids": "int32",
        "seen": "int32",
        "clicks": "int32",
        "trail": "int32",
    }
    assert (rows.keys, rows.positions.tolist()) == (["e1"], [0])
    assert (rows.event_time_ms.tolist(), rows.deadline_ms.tolist()) == ([1.7e12], [50.5])


@pytest.mark.parametrize("missing", [..., None])
def test_missing_fields_take_their_defaults(missing: object) -> None:
    optional = ("age", "country", "city", "clicks", "trail", "id", "at", "until")
    rows = one(**dict.fromkeys(optional, missing))
    assert rows.tensors["dense"][0, 0] == 30.0
    assert rows.tensors["ids"].tolist() == [[2, 2, 0, 9]]
    assert rows.tensors["clicks"].tolist() == [[0, 0, 0]]
    assert rows.tensors["trail"].tolist() == [[9, 9, 9]]
    assert rows.keys == [None]
    assert np.isnan([rows.event_time_ms[0], rows.deadline_ms[0]]).all()


def test_a_category_is_known_by_its_text() -> None:
    values = [packed(shop(country=country)) for country in ("se", 7, 7.0, "7", "fi", 7.5)]
    assert DECODER.decode(values).tensors["ids"][:, 0].tolist() == [1, 3, 3, 3, 0, 0]
    values = [packed(shop(city=city)) for city in (1, 1.0, "1", -0.0, 2**63)]
    texts = ("1", "1", "1", "0", str(2**63))
    assert DECODER.decode(values).tensors["ids"][:, 2].tolist() == [bucket("city", text, 100) for text in texts]


def test_defaults_of_shapes() -> None:
    spec = ModelSpec.parse(
        b"""{"event": "custom", "features": [
        {"name": "a", "shape": [3], "default": [1, 2, 3]},
        {"name": "b", "shape": [2, 2], "default": 7, "dtype": "int32"},
        {"name": "c", "shape": [2], "vocabulary": ["x", "y"], "default": "y"},
        {"name": "d", "shape": [2], "encoding": "raw", "default": [0.5, 1.5]}]}""",
        "spec.json",
    )
    for missing in ({}, {"a": None, "b": None, "c": None, "d": None}):
        rows = Decoder(spec, "json").decode([msgspec.json.encode(missing)])
        assert {name: tensor.tolist() for name, tensor in rows.tensors.items()} == {
            "a": [[1, 2, 3]],
            "b": [[[7, 7], [7, 7]]],
            "c": [[2, 2]],
            "d": [[0.5, 1.5]],
        }


def test_the_array_layout_is_key_time_deadline_and_the_fields_in_feature_order() -> None:
    spec = ModelSpec.parse(
        b'{"event":"custom","layout":"array","key":"k","time":"t","features":[{"name":"b"},{"name":"a","default":5}]}',
        "spec.json",
    )
    rows = Decoder(spec, "json").decode(
        [b'["x", 12, 1.5, 2]', b'[9, null, 1, null, "extra"]', b'["x", 12, 1]', b'["x"]']
    )
    assert rows.keys == ["x", 9, "x"]
    assert (rows.tensors["a"].ravel().tolist(), rows.tensors["b"].ravel().tolist()) == ([2, 5, 5], [1.5, 1, 1])
    assert [(at, error.reason, error.detail[:2]) for at, error in rows.invalid] == [(3, "missing_field", "b:")]


def test_a_tipping_event_is_the_same_in_both_formats() -> None:
    features = np.arange(32, dtype="<f4")
    values = ("t1", 11, 22, 33, 44, 5, 1.5, 6, 1700000000000, 1700000000050.0, features.tobytes())
    spec = builtin("tipping")
    binary = Decoder(spec, "msgpack").decode([msgspec.msgpack.encode(TippingEvent(*values))])
    text = Decoder(spec, "json").decode([msgspec.json.encode(JsonTippingEvent(*values))])
    for rows in (binary, text):
        assert rows.invalid == []
        assert rows.tensors["dense"].tolist() == [[5.0, 1.5, 6.0, *map(float, range(32))]]
        names = ("room", "streamer", "viewer", "gift")
        expected = [bucket(name, value, 5000) for name, value in zip(names, ("11", "22", "33", "44"), strict=True)]
        assert rows.tensors["ids"].tolist() == [expected]
        assert rows.keys == ["t1"]
        assert (rows.event_time_ms[0], rows.deadline_ms[0]) == (1700000000000, 1700000000050)


def test_a_json_tipping_event_needs_no_deadline() -> None:
    event = msgspec.json.decode(msgspec.json.encode(JsonTippingEvent("t", 1, 2, 3, 4, 5, 1, 6, 7, None, bytes(128))))
    del event["deadline_ms"]
    rows = Decoder(builtin("tipping"), "json").decode([msgspec.json.encode(event)])
    assert rows.invalid == [] and np.isnan(rows.deadline_ms[0])


def test_an_ad_event_with_a_short_sequence() -> None:
    numeric, categorical = np.arange(13, dtype="<f4"), np.arange(26, dtype="<i4")
    event = AdEvent(
        "r1", 7, 4999, 3, 1700000000000, None, numeric.tobytes(), categorical.tobytes(), struct.pack("<3i", 5, 4999, 8)
    )
    rows = Decoder(builtin("ad"), "msgpack").decode([msgspec.msgpack.encode(event)])
    assert rows.invalid == []
    assert rows.tensors["dense"].tolist() == [numeric.tolist()]
    tail = [bucket("user", "7", 5000), 4999, bucket("placement", "3", 5000)]
    assert rows.tensors["ids"].tolist() == [[*range(26), *tail]]
    assert rows.tensors["hist"].tolist() == [[5, 4999, 8] + [0] * 47]


def test_raw_elements_can_be_hashed() -> None:
    spec = ModelSpec.parse(
        b'{"event":"custom","features":[{"name":"a","shape":[3],"encoding":"raw","dtype":"int64","buckets":50,"pad":true}]}',
        "spec.json",
    )
    values = [packed({"a": struct.pack("<2q", 5, -(2**62))}), packed({})]
    expected = [[bucket("a", "5", 50), bucket("a", str(-(2**62)), 50), 0], [0, 0, 0]]
    assert Decoder(spec, "msgpack").decode(values).tensors["a"].tolist() == expected


def test_no_values_and_no_good_values_give_empty_tensors() -> None:
    for values in ([], [None, b""]):
        rows = DECODER.decode(values)
        assert len(rows) == 0 and len(rows.invalid) == len(values)
        assert {name: tensor.shape for name, tensor in rows.tensors.items()} == {
            "dense": (0, 4),
            "count": (0, 1),
            "image": (0, 2, 3),
            "ids": (0, 4),
            "seen": (0, 4),
            "clicks": (0, 3),
            "trail": (0, 3),
        }


def test_many_distinct_categories_do_not_grow_the_memory_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schemas.columns.Indices.MAX_ENTRIES", 100)
    decoder = Decoder(SHOP, "msgpack")
    cities = [f"city {i}" for i in range(1000)]
    ids = decoder.decode([packed(shop(city=city)) for city in cities]).tensors["ids"]
    assert ids[:, 2].tolist() == [bucket("city", city, 100) for city in cities]
    members = [single for filler in decoder._fills["ids"] for single in getattr(filler, "_singles", [filler])]
    [indices] = [single.column._indices for single in members if single.field == "city"]
    assert indices is not None and 0 < len(indices) <= 100
    decoder.decode([packed(shop(city="x" * 100_000))])
    assert max(len(str(text)) for text in indices) <= 64
