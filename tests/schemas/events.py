"""Specs and events for the tests of the decoder."""

import struct
from typing import Any

import msgspec

from schemas.spec import ModelSpec

SHOP = ModelSpec.parse(
    b"""
    event = "custom"
    key = "id"
    time = "at"
    deadline = "until"
    features = [
        { name = "age", tensor = "dense", min = 0, max = 130, default = 30.0 },
        { name = "score", tensor = "dense" },
        { name = "vector", tensor = "dense", shape = [2], encoding = "raw" },
        { name = "count", dtype = "int64" },
        { name = "image", shape = [2, 3], dtype = "int32" },
        { name = "country", tensor = "ids", vocabulary = ["se", "no", 7], default = "no" },
        { name = "plan", tensor = "ids", vocabulary = ["free", "paid"], unknown = "refuse" },
        { name = "city", tensor = "ids", buckets = 100 },
        { name = "slot", tensor = "ids", ids = 10 },
        { name = "seen", shape = [4], pad = true, ids = 50 },
        { name = "clicks", shape = [3], pad = true, buckets = 100, namespace = "city" },
        { name = "trail", shape = [3], pad = true, dtype = "int32", encoding = "raw", ids = 50, default = 9 },
    ]
    """,
    "shop.toml",
)


def shop(**changes: Any) -> dict[str, Any]:
    """A good event; a change to `...` leaves the field out."""
    event = {
        "id": "e1",
        "at": 1700000000000,
        "until": 50.5,
        "age": 41.5,
        "score": -2,
        "vector": struct.pack("<2f", 0.5, -0.25),
        "count": 2**40,
        "image": [[1, 2, 3], [4, 5, 6]],
        "country": "se",
        "plan": "paid",
        "city": "Luleå",
        "slot": 9,
        "seen": [1, 2],
        "clicks": ["a", 7],
        "trail": struct.pack("<2i", 3, 4),
    } | changes
    return {name: value for name, value in event.items() if value is not ...}


def packed(event: object) -> bytes:
    return msgspec.msgpack.encode(event)
