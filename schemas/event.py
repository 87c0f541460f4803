"""The two events that scorelane itself defines. Other formats are described by a model's spec (`schemas.spec`).

In msgpack an event is an array in field order with raw little-endian blobs, which is the fastest form. In JSON it is
an object with the field names, blobs as base64: the `Json…` twins.
"""

from typing import Final

import msgspec


class TippingEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A viewer gave a gift in a live room."""

    event_id: str
    room_id: int
    streamer_id: int
    viewer_id: int
    gift_id: int
    gift_count: int
    price: float
    """Coins for one gift."""
    combo: int
    time_ms: int
    """When the gift was given, milliseconds since the epoch."""
    deadline_ms: float | None
    features: bytes
    """Raw little-endian float32, as many as the model's spec says."""


class JsonTippingEvent(TippingEvent, array_like=False, frozen=True, gc=False):
    """`TippingEvent` with named fields, for JSON."""


class AdEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An ad is about to be shown to a user; its click probability is wanted."""

    request_id: str
    user_id: int
    ad_id: int
    placement_id: int
    time_ms: int
    """When the request was made, milliseconds since the epoch."""
    deadline_ms: float | None
    numeric: bytes
    """Raw little-endian float32."""
    categorical: bytes
    """Raw little-endian int32, ids that the producer has already assigned."""
    sequence: bytes
    """Raw little-endian int32, ids of the user's last ads, oldest first."""


class JsonAdEvent(AdEvent, array_like=False, frozen=True, gc=False):
    """`AdEvent` with named fields, for JSON."""


class BuiltinEvent(msgspec.Struct, frozen=True):
    """What a spec may say about one of the events above."""

    type: type[msgspec.Struct]
    key: str
    user: str
    """Whose event it is: who gave the gift, who is shown the ad."""
    blobs: dict[str, str]
    """Blob field -> dtype of its elements."""
    time: str = "time_ms"
    deadline: str = "deadline_ms"


BUILTIN_EVENTS: Final = {
    "tipping": BuiltinEvent(TippingEvent, "event_id", "viewer_id", {"features": "float32"}),
    "ad": BuiltinEvent(
        AdEvent, "request_id", "user_id", {"numeric": "float32", "categorical": "int32", "sequence": "int32"}
    ),
}
