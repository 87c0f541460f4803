"""What can be wrong with data: one record (`InvalidEvent`) or a model's description (`InvalidSpec`)."""

from textwrap import shorten
from typing import Final, Literal

import msgspec

Reason = Literal[
    "empty",
    "too_large",
    "malformed",
    "missing_field",
    "wrong_type",
    "wrong_length",
    "not_finite",
    "out_of_range",
    "unknown_value",
    "unscorable",
    "late",
    "shed",
]
"""Why a record became a dead letter. A closed set, since it is a metric label."""

REASONS: Final[tuple[Reason, ...]] = Reason.__args__  # type: ignore[attr-defined]


class InvalidEvent(Exception):
    """One record cannot be scored; it goes to the dead letters and its neighbours are not touched.

    `reason` is the machine-readable cause, `detail` names the field and what was found there.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class InvalidSpec(Exception):
    """A model's spec cannot be used. The message names the file, the key, the problem and the remedy."""

    def __init__(self, source: str, key: str, problem: str, remedy: str) -> None:
        super().__init__(f"{source}: {key}: {problem}; {remedy}")
        self.source = source
        self.key = key
        self.problem = problem
        self.remedy = remedy


UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises for bytes that it cannot decode."""


def unreadable(error: Exception) -> str:
    """Why bytes could not be decoded: one of `UNREADABLE` in words."""
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def remedy_of(error: OSError, otherwise: str) -> str:
    """What helps against a file that the system does not let be read: the right to do so, or else `otherwise`."""
    rights = "let this user read it and search the directories above it"
    return rights if isinstance(error, PermissionError) else otherwise


def brief(error: BaseException) -> str:
    """An error that may be any, such as a damaged file makes libraries raise, on one line."""
    return shorten(f"{type(error).__name__}: {error}", 200)
