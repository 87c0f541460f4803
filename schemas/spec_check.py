"""What the types of a spec cannot say: checks across its keys, each error with the key and the remedy."""

import re
from collections.abc import Iterator
from math import isfinite
from typing import Any, Final

import msgspec
import numpy as np

from schemas.errors import InvalidSpec
from schemas.event import BUILTIN_EVENTS, BuiltinEvent
from schemas.spec import FeatureSpec, ModelSpec

MAX_ROW_ELEMENTS: Final = 1 << 20
"""Elements of all tensors of one event; a typing error in a shape must not take the memory of the worker."""

_CHOICES: Final = {
    "event": (*BUILTIN_EVENTS, "custom"),
    "layout": ("map", "array"),
    "dtype": ("float32", "int32", "int64"),
    "unknown": ("zero", "refuse"),
    "encoding": ("list", "raw"),
}

_FILE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,127}\.npy")

Problem = tuple[str, str, str]
"""Key, problem, remedy."""


def check(spec: ModelSpec, source: str) -> None:
    """Raise `InvalidSpec` for the first problem."""
    for key, problem, remedy in _problems(spec):
        raise InvalidSpec(source, key, problem, remedy)


def translate(error: msgspec.ValidationError, document: Any, source: str) -> InvalidSpec:
    """`InvalidSpec` for a spec whose keys or types are wrong."""
    problem, _, path = str(error).partition(" - at `")
    key = path.rstrip("`").removeprefix("$").removeprefix(".")
    if match := re.match(r"features\[(\d+)\](.*)", key):
        feature = document["features"][int(match[1])]
        name = feature.get("name") if isinstance(feature, dict) else None
        key = f"features.{name}{match[2]}" if isinstance(name, str) else key
    known = (FeatureSpec if key.startswith("features") else ModelSpec).__struct_encode_fields__
    remedy = "correct its type"
    if match := re.search(r"(unknown|required) field `(.*)`", problem):
        key = f"{key}.{match[2]}".removeprefix(".")
        problem = "is not a key of a spec" if match[1] == "unknown" else "is missing"
        remedy = f"the keys here are {', '.join(known)}"
    elif "enum value" in problem and (choices := _CHOICES.get(key.rpartition(".")[2])):
        remedy = f"use one of {', '.join(choices)}"
    return InvalidSpec(source, key or "file", problem[:1].lower() + problem[1:], remedy)


def _problems(spec: ModelSpec) -> Iterator[Problem]:
    if not spec.features:
        yield "features", "is empty", "name at least one feature"
    yield from _event_problems(spec)
    seen: set[str] = set()
    for feature in spec.features:
        key = f"features.{feature.name}"
        if not feature.name:
            yield "features", "a feature has no name", "give each feature a name"
        if feature.name in seen:
            yield key, "the name is used twice", "give each feature its own name"
        seen.add(feature.name)
        for item, problem, remedy in (*_table_problems(feature), *_feature_problems(feature.read)):
            yield f"{key}.{item}", problem, remedy
        if builtin := BUILTIN_EVENTS.get(spec.event):
            for item, problem, remedy in _builtin_problems(feature.read, builtin, spec.event):
                yield f"{key}.{item}", problem, remedy
    yield from _tensor_problems(spec)
    yield from _field_problems(spec)


def _event_problems(spec: ModelSpec) -> Iterator[Problem]:
    names = {"key": spec.key, "time": spec.time, "deadline": spec.deadline}
    if spec.event != "custom":
        for key, name in names.items():
            if name is not None:
                yield key, f"the event {spec.event!r} has its own", "remove it, or set event to 'custom'"
        if spec.layout != "map":
            yield "layout", f"the event {spec.event!r} has its own", "remove it, or set event to 'custom'"
    given = [name for name in names.values() if name is not None]
    if len(set(given)) != len(given):
        yield "key", "key, time and deadline name the same field", "name one field each"
    if "" in given:
        yield "key", "key, time or deadline is empty", "name the field, or remove the key"


def _feature_problems(f: FeatureSpec) -> Iterator[Problem]:
    kinds = [kind for kind in ("vocabulary", "buckets", "ids") if getattr(f, kind) is not None]
    if len(kinds) > 1:
        yield kinds[1], f"stands beside {kinds[0]}", "keep one of vocabulary, buckets and ids"
    if any(size < 1 for size in f.shape):
        yield "shape", f"{list(f.shape)} has a size below 1", "use sizes from 1 up"
    if f.is_category and f.dtype == "float32":
        yield "dtype", "a category cannot be float32", "use int32 or int64"
    if f.pad and len(f.shape) != 1:
        yield "pad", f"the shape is {list(f.shape)}", "pad only features whose shape has one size"
    if f.encoding == "raw" and not f.shape:
        yield "encoding", "a scalar cannot be raw", "give a shape, or remove encoding"
    if f.encoding == "raw" and f.vocabulary is not None:
        yield "encoding", "raw elements are numbers and cannot be looked up in a vocabulary", "use ids or buckets"
    if f.unknown != "zero" and f.vocabulary is None:
        yield "unknown", "there is no vocabulary", "give a vocabulary, or remove unknown"
    if f.namespace != f.name and f.buckets is None:
        yield "namespace", "only buckets are hashed", "remove it"
    if f.encoding == "raw" and f.buckets is not None and f.optional and f.default is None and not f.pad:
        yield "required", "a missing raw field has no elements to be index 0", "set required, pad or a default"
    if f.required and (f.buckets is None or f.default is not None):
        yield "required", "it applies to buckets without a default", "remove it: without a default values are required"
    if f.buckets is not None and not 2 <= f.buckets <= 2**31 - 1:
        yield "buckets", f"{f.buckets} is not in [2, 2147483647]", "use at least 2: index 0 is kept for missing values"
    if f.ids is not None and not 1 <= f.ids <= (2**31 if f.dtype == "int32" else 2**63 - 1):
        yield "ids", f"{f.ids} indices do not fit {f.dtype}", "use at least 1 and at most what the dtype holds"
    if f.vocabulary is not None:
        yield from _vocabulary_problems(f)
    yield from _range_problems(f)
    yield from _default_problems(f)


def _table_problems(f: FeatureSpec) -> Iterator[Problem]:
    if not f.table:
        return
    if not _FILE.fullmatch(f.table):
        yield "table", f"{f.table!r} is no plain name of a .npy file", "put the file into the model's directory"
    if len(f.shape) != 1 or f.shape[0] < 1:
        yield "shape", f"{list(f.shape)} is not the width of a table's rows", "give one size"
    if f.dtype != "float32":
        yield "dtype", f"{f.dtype}, a table holds float32", "remove it"
    for key, value, plain in (("encoding", f.encoding, "list"), ("pad", f.pad, False), ("min", f.min, None)):
        if value != plain:
            yield key, "the event brings one id, not the row", "remove it"
    if f.max is not None:
        yield "max", "the event brings one id, not the row", "remove it"


def _vocabulary_problems(f: FeatureSpec) -> Iterator[Problem]:
    words = [category_text(value) for value in f.vocabulary or ()]
    if not words:
        yield "vocabulary", "is empty", "list the known values"
    if len(set(words)) != len(words):
        twice = next(word for word in words if words.count(word) > 1)
        yield "vocabulary", f"{twice!r} stands in it twice", "list each value once (numbers count as their text)"


def _range_problems(f: FeatureSpec) -> Iterator[Problem]:
    for key, limit in (("min", f.min), ("max", f.max)):
        if limit is None:
            continue
        if f.is_category:
            yield key, "a category has no range", "remove it; ids has the range [0, ids)"
        if isinstance(limit, float) and not isfinite(limit):
            yield key, f"{limit} is not finite", "use a finite number, or remove it"
        if f.dtype != "float32" and not isinstance(limit, int):
            yield key, f"{limit} is not an integer", f"use an integer: the dtype is {f.dtype}"
    if f.min is not None and f.max is not None and f.min > f.max:
        yield "min", f"{f.min} is above max = {f.max}", "exchange them"


def _default_problems(f: FeatureSpec) -> Iterator[Problem]:
    if f.default is None:
        return
    values = f.default if isinstance(f.default, tuple) else (f.default,)
    if isinstance(f.default, tuple) and (not f.shape or len(values) != f.size):
        yield "default", f"has {len(values)} elements", f"give one value, or {f.size} for the shape {list(f.shape)}"
    for value in values:
        if f.encoding == "list" and (f.vocabulary is not None or f.buckets is not None):
            if f.unknown == "refuse" and category_text(value) not in map(category_text, f.vocabulary or ()):
                yield "default", f"{value!r} is not in the vocabulary", "use a known value, or remove it"
            continue
        if isinstance(value, str):
            yield "default", f"{value!r} is not a number", "use a number"
            continue
        if f.dtype != "float32" and not isinstance(value, int):
            yield "default", f"{value} is not an integer", f"use an integer: the dtype is {f.dtype}"
            continue
        low, high = bounds(f)
        if not low <= value <= high:
            yield "default", f"{value} is outside [{low}, {high}]", "use a default that the feature itself accepts"


def _builtin_problems(f: FeatureSpec, builtin: BuiltinEvent, event: str) -> Iterator[Problem]:
    types = {field.name: field.type for field in msgspec.structs.fields(builtin.type)}
    if f.field not in types:
        yield "field", f"the event {event!r} has no field {f.field!r}", f"use one of {', '.join(types)}"
    elif f.field in (builtin.key, builtin.time, builtin.deadline):
        yield "field", f"{f.field!r} is the key, time or deadline of the event", "use another field"
    elif f.field in builtin.blobs:
        dtype = builtin.blobs[f.field]
        if f.encoding != "raw" or not f.shape or f.dtype != dtype:
            yield "field", f"{f.field!r} holds raw {dtype}", f"set encoding = 'raw', dtype = '{dtype}' and a shape"
    elif f.shape:
        yield "shape", f"{f.field!r} is a scalar", "remove the shape"
    elif types[f.field] is not int and (f.dtype != "float32" and (f.vocabulary is None and f.buckets is None)):
        yield "dtype", f"{f.field!r} is a float", "use float32"


def _tensor_problems(spec: ModelSpec) -> Iterator[Problem]:
    for name, features in spec.by_tensor.items():
        first = features[0]
        for other in features[1:]:
            if other.dtype != first.dtype:
                yield (
                    f"features.{other.name}.dtype",
                    f"tensor {name!r} is {first.dtype} by {first.name!r} and {other.dtype} here",
                    "give all features of a tensor one dtype",
                )
        wide = [feature for feature in features if len(feature.shape) > 1]
        if wide and len(features) > 1:
            yield (
                f"features.{wide[0].name}.tensor",
                f"tensor {name!r} joins a shape of rank {len(wide[0].shape)} with other features",
                "give it a tensor of its own; only scalars and rank 1 are joined",
            )
    widths: dict[str, FeatureSpec] = {}
    for feature in spec.features:
        if feature.table and widths.setdefault(feature.table, feature).size != feature.size:
            other = widths[feature.table]
            problem = f"{list(feature.shape)}, but {list(other.shape)} for the same table in {other.name!r}"
            yield f"features.{feature.name}.shape", problem, "give both the table's width"
    elements = sum(feature.size for feature in spec.features)
    if elements > MAX_ROW_ELEMENTS:
        yield "features", f"one event has {elements} elements", f"use at most {MAX_ROW_ELEMENTS}"


def _field_problems(spec: ModelSpec) -> Iterator[Problem]:
    """Two features may read one field when they read it the same way."""
    readers: dict[str, FeatureSpec] = {}
    own = {name for name in (spec.key, spec.time, spec.deadline) if name is not None}
    for feature in spec.features:
        if feature.field in own:
            yield (
                f"features.{feature.name}.field",
                f"{feature.field!r} is the key, time or deadline of the event",
                "let the event carry it in a field of its own",
            )
        first = readers.setdefault(feature.field, feature)
        if _reading(first.read) != _reading(feature.read):
            yield (
                f"features.{feature.name}.field",
                f"{feature.field!r} is read in another way by {first.name!r}",
                "use one kind, shape, encoding, pad and default for both, or two fields",
            )


def _reading(f: FeatureSpec) -> tuple[object, ...]:
    text = f.vocabulary is not None or f.buckets is not None
    return (
        text,
        f.dtype == "float32",
        f.shape,
        f.encoding,
        f.encoding == "raw" and f.dtype,
        f.pad,
        f.default,
        f.optional,
    )


def category_text(value: object) -> str:
    """The text by which a category is known: 7, 7.0 and "7" are one category.

    Producers without integers write 7.0 for 7, and Python's dicts take both for one key.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else str(value)


def bounds(f: FeatureSpec) -> tuple[int | float, int | float]:
    """Smallest and largest number that the feature accepts, by its own limits and by its dtype."""
    if f.ids is not None:
        return 0, f.ids - 1
    lowest: int | float
    highest: int | float
    if f.dtype == "float32":
        highest = float(np.finfo(np.float32).max)
        lowest = -highest
    else:
        lowest, highest = int(np.iinfo(f.dtype).min), int(np.iinfo(f.dtype).max)
    return (lowest if f.min is None else max(f.min, lowest)), (highest if f.max is None else min(f.max, highest))
