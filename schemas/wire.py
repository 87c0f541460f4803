"""The body of a record as a msgspec type, built from a spec: the fields that are used, in the types they must have.

msgspec then checks types, presence and lengths while it decodes, in C. What it cannot check is left to `columns`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from schemas.event import BUILTIN_EVENTS
from schemas.spec import FeatureSpec, ModelSpec

Format = Literal["msgpack", "json"]

REQUIRED: Final = msgspec.NODEFAULT

_MAX_KEY_CHARACTERS: Final = 1024
"""A key comes back in the score, which must not outgrow what a broker accepts."""

_TextKey = Annotated[str, msgspec.Meta(max_length=_MAX_KEY_CHARACTERS)]
_Key = _TextKey | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None


class WireField(NamedTuple):
    """One field of the body."""

    name: str
    type: Any
    default: Any = REQUIRED
    """What the decoder gives where the field is absent."""


class Wire(NamedTuple):
    """All fields of the body in the order of the array layout, and which of them identify and time the event."""

    fields: tuple[WireField, ...]
    is_array: bool
    key: str | None
    time: str | None
    deadline: str | None

    def attribute(self, name: str) -> str:
        """Attribute of the struct that holds the field; field names need not be identifiers."""
        return f"f{[field.name for field in self.fields].index(name)}"

    def struct(self) -> type[msgspec.Struct]:
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        rename: dict[str, str] = {}
        for index, field in enumerate(self.fields):
            rename[f"f{index}"] = field.name
            fields.append((f"f{index}", field.type, field.default))
        return msgspec.defstruct(
            "Body", fields, rename=rename, array_like=self.is_array, kw_only=True, frozen=True, gc=False
        )


def wire(spec: ModelSpec, format: Format) -> Wire:
    """The body that an event has in `format`."""
    if builtin := BUILTIN_EVENTS.get(spec.event):
        readers = {feature.field: feature.read for feature in spec.features}
        fields = []
        for field in msgspec.structs.fields(builtin.type):
            if field.name in readers:
                fields.append(_feature_field(readers[field.name], field.type))
            elif field.name == builtin.key:
                fields.append(WireField(field.name, _TextKey))
            elif field.name == builtin.time:
                fields.append(WireField(field.name, float))
            elif field.name == builtin.deadline:
                fields.append(WireField(field.name, float | None, None))
            else:
                fields.append(WireField(field.name, field.type))
        return Wire(tuple(fields), format == "msgpack", builtin.key, builtin.time, builtin.deadline)
    own = [WireField(spec.key, _Key, None)] if spec.key is not None else []
    own += [WireField(name, float | None, None) for name in (spec.time, spec.deadline) if name is not None]
    by_name = {feature.field: _feature_field(feature.read) for feature in spec.features}
    return Wire((*own, *by_name.values()), spec.layout == "array", spec.key, spec.time, spec.deadline)


def blank(feature: FeatureSpec) -> Any:
    """What stands for a missing value of an optional feature: a value that the feature itself could have had.

    In categories that are looked up it is None, which has an index of its own.
    """
    looked_up = feature.vocabulary is not None or feature.buckets is not None
    if feature.encoding == "raw":
        if feature.default is None:
            return b""
        return np.broadcast_to(np.asarray(feature.default, element_dtype(feature)), feature.size).tobytes()
    if not feature.shape:
        return None if looked_up else feature.default
    default = feature.default if isinstance(feature.default, tuple) else (feature.default,) * feature.size
    return _nested(default, feature.shape)


def holds_integers(spec: ModelSpec, feature: FeatureSpec) -> bool:
    """True when the field's values are integers, whatever the tensor's dtype is."""
    if builtin := BUILTIN_EVENTS.get(spec.event):
        declared = next(field.type for field in msgspec.structs.fields(builtin.type) if field.name == feature.field)
        return declared is int and not isinstance(feature.default, float)
    return feature.dtype != "float32"


def element_dtype(feature: FeatureSpec) -> np.dtype[np.generic]:
    """Elements of a raw field."""
    return np.dtype(feature.dtype).newbyteorder("<")


def _nested(values: Sequence[Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    if len(shape) == 1:
        return tuple(values)
    step = len(values) // shape[0]
    return tuple(_nested(values[at : at + step], shape[1:]) for at in range(0, len(values), step))


def _feature_field(feature: FeatureSpec, declared: Any = None) -> WireField:
    kind: Any
    if feature.encoding == "raw":
        size = feature.size * element_dtype(feature).itemsize
        kind = Annotated[bytes, msgspec.Meta(min_length=None if feature.pad else size, max_length=size)]
    elif declared is not None:
        kind = declared
    else:
        if feature.vocabulary is not None or feature.buckets is not None:
            kind = str | int | float
        else:
            kind = float if feature.dtype == "float32" else int
        for size in reversed(feature.shape):
            kind = Annotated[list[kind], msgspec.Meta(min_length=None if feature.pad else size, max_length=size)]
    if feature.optional:
        return WireField(feature.field, kind | None, blank(feature))
    return WireField(feature.field, kind)
