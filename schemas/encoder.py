"""Mappings into record values: what producers, the demo and tests send, and what a decoder of the same spec reads."""

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

import msgspec
import numpy as np

from schemas.errors import UNREADABLE, unreadable
from schemas.event import BUILTIN_EVENTS
from schemas.refusal import invalid
from schemas.spec import FeatureSpec, ModelSpec
from schemas.wire import Format, element_dtype, wire


class Encoder:
    """Encodes rows of a CSV or JSONL file, or an event's own fields, as a topic's events.

    Text becomes what the field is (a CSV has nothing but text, and a JSON array in it is a list), an empty text is a
    missing value (but the base64 of an empty sequence), lists and base64 become raw elements where the spec says so.
    Columns that the spec does not name are left out. Lengths and ranges are not checked: that is for the decoder.
    """

    def __init__(self, spec: ModelSpec, format: Format) -> None:
        self._wire = wire(spec, format)
        self._features = {feature.field: feature.read for feature in spec.features}
        builtin = BUILTIN_EVENTS.get(spec.event)
        self._types = {field.name: field.type for field in msgspec.structs.fields(builtin.type)} if builtin else {}
        self._blobs = builtin.blobs if builtin else {}
        self._raw_sequences = {feature.field for feature in spec.features if feature.pad and feature.encoding == "raw"}
        """Fields whose base64 may be empty, as an empty sequence is."""
        encoder = msgspec.msgpack.Encoder() if format == "msgpack" else msgspec.json.Encoder()
        self._encode: Callable[[object], bytes] = encoder.encode
        self._check: Callable[[object], None] = _of_msgpack if format == "msgpack" else _of_json
        """Raises `ValueError` for a number that the format has not."""

    def encode(self, row: Mapping[str, object]) -> bytes:
        """One record value. Raises `InvalidEvent` for a value that the field cannot hold."""
        values: dict[str, object] = {}
        for field in self._wire.fields:
            value = row.get(field.name)
            try:
                missing = value is None or (value == "" and field.name not in self._raw_sequences)
                values[field.name] = None if missing else self._value(field.name, value)
                _each(self._check, values[field.name])
            except RecursionError as error:
                raise invalid("wrong_type", field.name, f"{unreadable(error)}, cannot be encoded") from error
            except (TypeError, ValueError, OverflowError) as error:
                raise invalid("wrong_type", field.name, f"{value!r} cannot be encoded ({error})") from error
        body: object = {name: value for name, value in values.items() if value is not None}
        if self._wire.is_array:
            body = list(values.values())
        return self._encode(body)

    def _value(self, name: str, value: Any) -> object:
        feature = self._features.get(name)
        if feature is not None and name not in self._types:
            return _feature_value(feature, value)
        if name in self._blobs:
            return _raw(value, np.dtype(self._blobs[name]).newbyteorder("<"))
        declared = self._types.get(name)
        if declared is str:
            return str(value)
        if declared is int:
            return _integer(value)
        if float in (declared, *get_args(declared)) or name in (self._wire.time, self._wire.deadline):
            return _number(value)
        return value


def _each(check: Callable[[object], None], value: object) -> None:
    """Check a value, or each item of a list of any depth."""
    if isinstance(value, list):
        for item in value:
            _each(check, item)
    else:
        check(value)


def _of_msgpack(value: object) -> None:
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("msgpack has no such integer")


def _of_json(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):  # it would be written as null, which is no value
        raise ValueError("JSON has no such number")


def _feature_value(feature: FeatureSpec, value: Any) -> object:
    if feature.encoding == "raw":
        return _raw(value, element_dtype(feature))
    if feature.vocabulary is not None or feature.buckets is not None:
        return _nested(value, _category, len(feature.shape))
    return _nested(value, _number if feature.dtype == "float32" else _integer, len(feature.shape))


def _nested(value: Any, convert: Callable[[Any], object], rank: int) -> object:
    if rank == 0:
        return convert(value)
    value = _json_array(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(
            "a list is needed: a JSON array in the cell, JSONL, or one column per element with the same name"
        )
    return [_nested(item, convert, rank - 1) for item in value]


def _json_array(value: Any) -> Any:
    """The list that a text is; other values as they are. No base64 has a bracket."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        return msgspec.json.decode(value, type=list[Any])
    except UNREADABLE as error:
        raise ValueError(f"not a JSON array: {unreadable(error)}") from error


def _raw(value: Any, dtype: np.dtype[Any]) -> bytes:
    value = _json_array(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _base64(value)
    if dtype.kind == "i":
        value = [_integer(item) for item in value]
    return np.asarray(value, dtype).tobytes()


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise TypeError("a list, bytes or their base64 are needed") from error


def _category(value: Any) -> str | int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("a text or a number is needed")
    return value


def _integer(value: Any) -> int:
    """An integer; 3.0 and "3.0" are 3, since tables with missing values write integers so."""
    if isinstance(value, bool):
        raise TypeError("a number is needed")
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("an integer is needed")
    return int(value)


def _number(value: Any) -> int | float:
    if isinstance(value, bool):
        raise TypeError("a number is needed")
    return value if isinstance(value, int | float) else float(value)
