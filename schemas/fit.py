"""Whether the rows of a file are events of a spec at all: which fields they lack, and which columns nobody reads."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from schemas.samples import header, rows
from schemas.spec import ModelSpec
from schemas.wire import REQUIRED, wire

LOOKED_AT: Final = 1000
"""Rows whose columns are looked at. A table has the same ones throughout, and a file may be large."""

_NAMED: Final = 12


class Fit(NamedTuple):
    """What is to be said of a file, each one line without the file's name; empty where there is nothing."""

    problem: str
    """Why its rows are no events of the spec."""
    warning: str
    """What is odd about it."""


def fit(spec: ModelSpec, path: Path, *, others: Iterable[str] = ()) -> Fit:
    """Compare the columns of a CSV or JSONL file with the fields of the spec.

    A field that no row has is a problem where the spec has no default for it, else worth a warning; so is a column that
    is neither a field nor one of `others`, and a field without default that only some rows have. A file with none of
    the spec's features is a problem in any case. Raises `ValueError` and `OSError` as `schemas.samples.rows`.
    """
    counts = dict.fromkeys(header(path), 0)
    looked_at = 0
    for row in islice(rows(path), LOOKED_AT):
        looked_at += 1
        for column, value in row.items():
            counts[column] = counts.get(column, 0) + (value is not None and value != "")
    if not looked_at:
        return Fit("no rows; give a CSV file with a header and rows, or JSONL", "")
    body = wire(spec, "json")
    needed = {field.name for field in body.fields if field.default is REQUIRED}
    own = {body.key, body.time, body.deadline} - needed
    absent = [field.name for field in body.fields if field.name not in counts and field.name not in own]
    columns = f"its columns are {_names(counts)}"
    if not any(feature.field in counts for feature in spec.features):
        return Fit(
            f"has none of the model's fields: {_names(absent)} are missing, {columns}; give the model of these rows,"
            " or rename the columns",
            "",
        )
    if lacking := [name for name in absent if name in needed]:
        return Fit(f"{_names(lacking)}: missing, and the spec has no default; {columns}; add them", "")
    said = []
    if absent:
        said.append(f"{_names(absent)}: missing, the default is taken")
    scarce = [name for name in counts if name in needed and counts[name] < looked_at]
    if scarce:
        shown = _names(f"{name} (in {counts[name]} of {looked_at} rows)" for name in scarce)
        said.append(f"{shown}: no default, rows without are refused")
    read = {field.name for field in body.fields} | set(others)
    if unused := [name for name in counts if name not in read]:
        said.append(f"{_names(unused)}: not in the spec, left out")
    return Fit("", "; ".join(said))


def _names(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
