"""The messages that others read: field order and names are a promise."""

import msgspec
import pytest

from schemas.alarm import Alarm, JsonAlarm
from schemas.errors import REASONS
from schemas.event import AdEvent, JsonAdEvent, JsonTippingEvent, TippingEvent

ALARM = ("raised", "latency_p99", "ctr", 61.5, 50.0, 1700000000000, 7)
TIP = ("t1", 1, 2, 3, 4, 5, 1.5, 6, 1700000000000, None, b"\x00\x00\x80?")
AD = ("r1", 1, 2, 3, 1700000000000, 50.0, b"\x00\x00\x80?", b"\x01\x00\x00\x00", b"")


@pytest.mark.parametrize(("kind", "values"), [(Alarm, ALARM), (TippingEvent, TIP), (AdEvent, AD)])
def test_msgpack_is_an_array_in_field_order(kind: type[msgspec.Struct], values: tuple[object, ...]) -> None:
    encoded = msgspec.msgpack.encode(kind(*values))
    assert msgspec.msgpack.decode(encoded) == list(values)
    assert msgspec.msgpack.decode(encoded, type=kind) == kind(*values)


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (
            JsonAlarm,
            ALARM,
            b'{"state":"raised","cause":"latency_p99","topic":"ctr","observed":61.5,"limit":50.0,'
            b'"time_ms":1700000000000,"generation":7}',
        ),
        (
            JsonTippingEvent,
            TIP,
            b'{"event_id":"t1","room_id":1,"streamer_id":2,"viewer_id":3,"gift_id":4,"gift_count":5,"price":1.5,'
            b'"combo":6,"time_ms":1700000000000,"deadline_ms":null,"features":"AACAPw=="}',
        ),
        (
            JsonAdEvent,
            AD,
            b'{"request_id":"r1","user_id":1,"ad_id":2,"placement_id":3,"time_ms":1700000000000,"deadline_ms":50.0,'
            b'"numeric":"AACAPw==","categorical":"AQAAAA==","sequence":""}',
        ),
    ],
)
def test_json_is_an_object_with_the_field_names(
    kind: type[msgspec.Struct], values: tuple[object, ...], text: bytes
) -> None:
    assert msgspec.json.encode(kind(*values)) == text
    assert msgspec.json.decode(text, type=kind) == kind(*values)


def test_reasons_are_distinct() -> None:
    assert len(set(REASONS)) == len(REASONS) > 0
