"""The session of an engine that computes on the caller's thread."""

from collections.abc import Callable
from typing import Final

from engines.base import Features, Scores
from engines.errors import RunError
from engines.inputs import Inputs


class CpuSession:
    """Scores inside `submit` and hands the result over in `collect`, so errors of a batch show at `submit`.

    `score` gets a checked batch and its number of rows, and returns a new array of that length.
    """

    depth: Final = 1

    def __init__(self, inputs: Inputs, score: Callable[[Features, int], Scores]) -> None:
        self._inputs = inputs
        self._score = score
        self._pending: Scores | None = None
        self._closed = False

    def submit(self, features: Features) -> None:
        if self._closed:
            raise RunError("the session is closed; open another one")
        if self._pending is not None:
            raise RunError("a batch is pending already, and this session's depth is 1; collect it first")
        self._pending = self._score(features, self._inputs.check(features))

    def collect(self) -> Scores:
        if self._pending is None:
            raise RunError("no batch is pending; submit one first")
        scores, self._pending = self._pending, None
        return scores

    def close(self) -> None:
        self._closed = True
        self._pending = None
