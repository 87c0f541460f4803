"""Why msgspec could not decode a body, as the reason and the detail of a dead letter."""

import re
from collections.abc import Sequence
from typing import Final

from schemas.errors import InvalidEvent, Reason, unreadable
from schemas.wire import REQUIRED, WireField

_MAX_DETAIL: Final = 200

_MISSING: Final = re.compile(r"Object missing required field `(.*)`$")
_SHORT_ARRAY: Final = re.compile(r"Expected `array` of at least length (\d+), got (\d+)$")
_POSITION: Final = re.compile(r"\[(\d+)\](.*)")

_REASONS: Final[tuple[tuple[str, Reason], ...]] = (
    ("of length", "wrong_length"),
    ("Number out of range", "not_finite"),  # beyond float64, which no spec can be widened to
    ("out of range", "out_of_range"),
    ("Expected `int` <=", "out_of_range"),
    ("Expected `int` >=", "out_of_range"),
    ("Expected ", "wrong_type"),
)
"""Part of msgspec's message -> reason, the first that fits; the rest is malformed."""


def refusal(error: Exception, fields: Sequence[WireField]) -> InvalidEvent:
    """`fields` are those of the body, by which positions of an array are named."""
    names = [field.name for field in fields]
    if isinstance(error, RecursionError):
        return InvalidEvent("malformed", f"event: {unreadable(error)}")
    problem, _, path = str(error).partition(" - at `")
    field = _field(path.rstrip("`").removeprefix("$"), names)
    if match := _MISSING.match(problem):
        return invalid("missing_field", match[1], "absent, and the spec has no default")
    if not path and (match := _SHORT_ARRAY.match(problem)):
        have = int(match[2])
        absent = next(field.name for field in fields[have:] if field.default is REQUIRED)
        return invalid("missing_field", absent, f"absent: the array has {have} elements of at least {match[1]}")
    if field in names and problem.endswith(("got `null`", "got `None`")):
        return invalid("missing_field", field, "null, and the spec has no default")
    reason: Reason = next((reason for part, reason in _REASONS if part in problem), "malformed")
    return invalid(reason, field or "event", problem.replace("Expected", "expected", 1))


def invalid(reason: Reason, field: str, problem: str) -> InvalidEvent:
    """`InvalidEvent` for a field, its detail cut to a length that a header can have."""
    return InvalidEvent(reason, f"{field}: {problem}"[:_MAX_DETAIL])


def _field(path: str, names: Sequence[str]) -> str:
    """`.price` -> price; `[6]` -> the name of field 6; `.history[3]` -> history[3]."""
    if (match := _POSITION.match(path)) and int(match[1]) < len(names):
        return names[int(match[1])] + match[2]
    return path.removeprefix(".")
