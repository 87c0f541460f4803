"""The spec of a model: which fields of an event it reads and which tensors they become.

A spec is a TOML or JSON file beside the model:

    event = "custom"                 # or "tipping", "ad": the events of schemas.event
    layout = "map"                   # custom only; "array": key, time, deadline, then the fields in feature order
    key = "request_id"               # custom only, optional, like time and deadline: names of the event's own fields
    features = [
        { name = "age", tensor = "dense", default = 0.0, min = 0.0, max = 130.0 },
        { name = "country", tensor = "ids", buckets = 1000 },
        { name = "embedding", dtype = "float32", shape = [64], encoding = "raw" },
        { name = "streamer_vec", field = "streamer_id", table = "streamer.npy", shape = [16], default = 0 },
    ]

A feature with a `table` is a static embedding: the event brings an id, the model gets that row of a matrix which is
computed elsewhere and refreshed while in use. The file lies in the package's directory, or above it in the model's
(models/<name>/), where it outlives versions; it is not in the manifest, since it changes. It is replaced by renaming a
new one over it (`schemas.tables.write_table`) and read again within about a second of the next events; a broken one is
logged and the rows before it stay in use.
"""

import json
import tomllib
from functools import cached_property
from importlib import resources
from math import prod
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import force_setattr

from schemas.errors import UNREADABLE, InvalidSpec, unreadable

Dtype = Literal["float32", "int32", "int64"]
CategoryValue = str | int | float


class FeatureSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One field of the event as the model reads it.

    A feature is a number, or a category when it has one of `vocabulary`, `buckets` and `ids`; categories are integers
    in the tensor, or with `table` the rows of these indices. Values that are missing (absent or null) take `default`,
    and are refused where there is none; only in a feature with `buckets` they are index 0 unless `required`.
    """

    name: str
    field: str = ""
    """Field of the event; the feature's name where not given."""
    tensor: str = ""
    """Model input; the feature's name where not given."""
    dtype: Dtype | Literal[""] = ""
    """Element type in the tensor: float32 for numbers and int32 for categories where not given."""
    shape: tuple[int, ...] = ()
    """Shape in one event, empty for a scalar."""
    default: int | float | str | tuple[int | float | str, ...] | None = None
    """Value that a missing field takes: one value for all elements, or one for each in row-major order."""
    required: bool = False
    """With `buckets`: a missing value is refused instead of being index 0."""
    min: int | float | None = None
    max: int | float | None = None
    """Smallest and largest value that is not refused, both inclusive."""
    vocabulary: tuple[CategoryValue, ...] | None = None
    """Known values: the first has index 1. Others have index 0, or are refused, as `unknown` says."""
    unknown: Literal["zero", "refuse"] = "zero"
    """With `vocabulary` and `table`: what becomes of a value that is in neither."""
    table: str = ""
    """File with a float32 matrix in .npy format, its width the feature's shape: the value, an index by the rules of
    `vocabulary`, `buckets` or `ids` or else an integer, selects the row. An index outside the table selects row 0, or
    is refused, as `unknown` says."""
    buckets: int | None = None
    """Hash the value into 1..buckets-1 (see `bucket`)."""
    ids: int | None = None
    """The value is an integer in [0, ids) and is the index."""
    namespace: str = ""
    """What is hashed with the value in `buckets`; features with one namespace share indices. The name by default."""
    encoding: Literal["list", "raw"] = "list"
    """How an event carries a shape that is not empty: as (nested) lists, or as raw little-endian elements of `dtype`
    in row-major order (base64 in JSON)."""
    pad: bool = False
    """A rank-1 feature may have fewer elements than its shape and is filled with 0 on the right."""

    def __post_init__(self) -> None:
        for attribute in ("field", "tensor", "namespace"):
            if not getattr(self, attribute):
                force_setattr(self, attribute, self.name)
        if not self.dtype:
            force_setattr(self, "dtype", "int32" if self.is_category else "float32")

    @property
    def is_category(self) -> bool:
        """True when the tensor holds indices."""
        kinds = (self.vocabulary, self.buckets, self.ids)
        return not self.table and any(kind is not None for kind in kinds)

    @property
    def read(self) -> "FeatureSpec":
        """How the event's field is read: the feature itself, or what selects a row of its table."""
        if not self.table:
            return self
        return FeatureSpec(
            name=self.name,
            field=self.field,
            dtype="int64",
            default=self.default,
            required=self.required,
            vocabulary=self.vocabulary,
            unknown=self.unknown if self.vocabulary is not None else "zero",
            buckets=self.buckets,
            ids=self.ids,
            namespace=self.namespace,
        )

    @property
    def size(self) -> int:
        """Elements in one event."""
        return prod(self.shape)

    @property
    def cardinality(self) -> int | None:
        """Indices in the tensor lie in [0, cardinality); None for numbers."""
        if self.table:
            return None
        if self.vocabulary is not None:
            return len(self.vocabulary) + 1
        return self.buckets if self.buckets is not None else self.ids

    @property
    def optional(self) -> bool:
        """True when an event without this field is scored."""
        return self.default is not None or (self.buckets is not None and not self.required)


class TensorSpec(msgspec.Struct, frozen=True):
    """One model input. `shape` is that of one row, without the batch dimension."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """What a model reads from an event. Instances that `parse` or `load` return are valid."""

    event: Literal["tipping", "ad", "custom"]
    layout: Literal["map", "array"] = "map"
    key: str | None = None
    time: str | None = None
    deadline: str | None = None
    features: tuple[FeatureSpec, ...]

    @classmethod
    def load(cls, path: Path) -> "ModelSpec":
        """Read a TOML or JSON file. Raises `InvalidSpec`."""
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InvalidSpec(
                str(path), "file", f"cannot be read ({error.strerror})", "check the path and the permissions"
            ) from error
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, source: str) -> "ModelSpec":
        """Read TOML or JSON text; `source` is how errors name it. Raises `InvalidSpec`."""
        from schemas.spec_check import check, translate

        is_json = data.lstrip()[:1] == b"{"
        try:
            document = msgspec.json.decode(data) if is_json else tomllib.loads(data.decode())
        except UNREADABLE as error:
            kind = "JSON" if is_json else "TOML"
            raise InvalidSpec(
                source, "file", f"is not valid {kind} ({unreadable(error)})", "correct the syntax"
            ) from error
        try:
            spec = msgspec.convert(document, cls)
        except msgspec.ValidationError as error:
            raise translate(error, document, source) from error
        check(spec, source)
        return spec

    def dumps(self) -> bytes:
        """The spec as TOML that `parse` reads back to an equal spec."""
        fields = msgspec.to_builtins(self)
        features = fields.pop("features")
        lines = [f"{key} = {_toml(value)}" for key, value in fields.items()]
        lines += ["features = [", *(f"    {_toml(feature)}," for feature in features), "]", ""]
        return "\n".join(lines).encode()

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The model's inputs, in the order in which features name them first."""
        return tuple(
            TensorSpec(name, features[0].dtype or "float32", self._row_shape(features))
            for name, features in self.by_tensor.items()
        )

    @cached_property
    def by_tensor(self) -> dict[str, tuple[FeatureSpec, ...]]:
        """Tensor name -> its features from left to right: a scalar takes one column, a shape [k] takes k columns. A
        lone feature of a higher rank has the tensor's whole shape."""
        groups: dict[str, list[FeatureSpec]] = {}
        for feature in self.features:
            groups.setdefault(feature.tensor, []).append(feature)
        return {name: tuple(features) for name, features in groups.items()}

    @staticmethod
    def _row_shape(features: tuple[FeatureSpec, ...]) -> tuple[int, ...]:
        if len(features) == 1 and features[0].shape:
            return features[0].shape
        return (sum(feature.size for feature in features),)


def builtin(name: str) -> ModelSpec:
    """One of the specs that come with scorelane: criteo, avazu, alimama, tipping, ad. Raises `InvalidSpec`."""
    folder = resources.files("schemas") / "specs"
    names = sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    if name not in names:
        raise InvalidSpec("built-in specs", "name", f"there is none called {name!r}", f"use one of {', '.join(names)}")
    return ModelSpec.parse((folder / f"{name}.toml").read_bytes(), f"schemas/specs/{name}.toml")


def _toml(value: object) -> str:
    """A value as inline TOML. JSON strings are TOML strings but for DEL, which TOML wants escaped."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return "true" if value else "false"
        case _:
            return repr(value)
