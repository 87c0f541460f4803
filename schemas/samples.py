"""Rows of the public samples (Criteo, Avazu, Alimama) and of any CSV or JSONL file, as an encoder takes them."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from schemas.errors import UNREADABLE, unreadable

if TYPE_CHECKING:
    from _csv import Reader

Row = dict[str, object]
"""Column -> value. A CSV cell is text, a repeated CSV column a list of text. Empty cells are left out."""


class Sample(NamedTuple):
    """A known public sample."""

    spec: str
    """Name for `schemas.spec.builtin`."""
    label: str
    """Column with 1 for a click."""


SAMPLES: Final = {
    "criteo": Sample("criteo", "label"),
    "avazu": Sample("avazu", "click"),
    "alimama": Sample("alimama", "target"),
}

JSON_LINES: Final = {".jsonl", ".ndjson", ".json"}
"""Suffixes of files with a JSON object in each line; every other file is CSV."""

MAX_CELL: Final = 1 << 24
"""Characters of a CSV cell: raw features in base64 are long, but a quote that is never closed ends somewhere."""

_ALIMAMA_SEQUENCES: Final = ("his_cate", "his_brand", "cont_btag", "match_mask")


def rows(path: Path) -> Iterator[Row]:
    """Rows of a JSONL file (`.jsonl`, `.ndjson`, `.json`) or else of a CSV file with a header.

    The sequences of an Alimama row lose the positions that its `mask` marks as padding. Raises `ValueError` with the
    file and the line for what cannot be read, `OSError` for a file that cannot be opened.
    """
    must_be_regular(path)
    if path.suffix in JSON_LINES:
        yield from _json_rows(path)
    else:
        yield from _csv_rows(path)


def must_be_regular(path: Path) -> None:
    """Raises `ValueError` for a pipe or a device: rows are read more than once, and those that were read are gone."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is no regular file, which can be read more than once; write the rows to one")


def header(path: Path) -> list[str]:
    """Columns of a CSV file as its rows may have them, each once; none for JSONL, whose rows name their own.

    Raises as `rows`.
    """
    must_be_regular(path)
    if path.suffix in JSON_LINES:
        return []
    with _csv(path) as reader:
        columns = dict.fromkeys(next(reader, []))
    if "his_cate" in columns:
        columns.pop("mask", None)
    return list(columns)


def _json_rows(path: Path) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(dict[str, object])
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                yield decoder.decode(line)
            except UNREADABLE as error:
                remedy = (
                    "correct the line" if isinstance(error, RecursionError) else "each line must be one JSON object"
                )
                problem = _of_field(line) or f"{unreadable(error)}; {remedy}"
                raise ValueError(f"{path}: line {number}: {problem}") from error


def _of_field(line: bytes) -> str:
    """The field of an object whose value cannot be read, and why; empty where the line itself is the problem."""
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return ""
    for name, value in fields.items():
        try:
            msgspec.json.decode(value)
        except UNREADABLE as error:
            problem = unreadable(error).partition(" - at `")[0]
            return f"{name}: {problem[:1].lower()}{problem[1:]}; correct the value"
    return ""


@contextmanager
def _csv(path: Path) -> "Iterator[Reader]":
    """The cells of each line. What cannot be read inside the `with` is a `ValueError` with the file and the line."""
    csv.field_size_limit(MAX_CELL)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        try:
            yield reader
        except csv.Error as error:
            raise ValueError(f"{path}: line {reader.line_num}: {error}; correct the line") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: {_not_utf8(path)}; write the file in UTF-8") from error


def _not_utf8(path: Path) -> str:
    """The first line that is no UTF-8, and why. A text file is decoded a block ahead of the line that is read."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number}: {error}"
    return "no UTF-8"


def _csv_rows(path: Path) -> Iterator[Row]:
    with _csv(path) as reader:
        header = next(reader, [])
        repeated = {column for column in header if header.count(column) > 1}
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise ValueError(
                    f"{path}: line {reader.line_num}: {len(cells)} cells under {len(header)} columns; correct the line"
                )
            row: Row = {}
            lists: dict[str, list[str]] = {column: [] for column in repeated}
            for column, cell in zip(header, cells, strict=True):
                if column in lists:
                    lists[column].append(cell)
                elif cell:
                    row[column] = cell
            row.update(lists)
            yield _without_padding(row)


def _without_padding(row: Row) -> Row:
    """Alimama pads its sequences on the left with 0, which is also a valid brand; only the mask tells them apart."""
    mask = row.get("mask")
    if isinstance(mask, list) and "his_cate" in row:
        for column in _ALIMAMA_SEQUENCES:
            values = row.get(column)
            if isinstance(values, list) and len(values) == len(mask):
                row[column] = [value for value, kept in zip(values, mask, strict=True) if kept == "1"]
        del row["mask"]
    return row
