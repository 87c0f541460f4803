"""What goes wrong in a replay, and when."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final, Literal, Self

Kind = Literal["slow", "hang", "error", "lost", "pause", "jump"]

PRIMARY: Final = "primary"

LONGEST_S: Final = 31_536_000.0
"""A year: what is longer, or no number, is no time of a replay."""

FORMS: Final = (
    "slow:ENGINE:FACTOR:2s-4s, hang:ENGINE:2s-4s, error:ENGINE:2s-4s, lost:ENGINE:2s, pause:2s-2.5s or jump:+30s:2s"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """Seconds count from the beginning of the replay.

    slow: an engine computes `amount` times as slowly in [start_s, stop_s). hang: a batch that begins then never comes
    back, nor do those behind it in the same session. error: a batch that begins then fails. lost: from start_s on the
    device is gone. pause: the whole worker stands still, the device does not. jump: the worker's wall clock is moved
    by `amount` seconds, the producers' clocks are not.
    """

    kind: Kind
    start_s: float
    stop_s: float = inf
    engine: str = PRIMARY
    """Kind of engine, or "primary"."""
    amount: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """From one of `FORMS`. Raises `ValueError` with the remedy."""
        try:
            return cls._parsed(text.split(":"))
        except (ValueError, IndexError) as error:
            raise ValueError(f"{text!r}: {error}; give {FORMS}") from error

    @classmethod
    def _parsed(cls, parts: list[str]) -> Self:
        match parts:
            case ["slow", engine, factor, times]:
                amount = float(factor)
                if not 0 < amount < inf:
                    raise ValueError("the factor must be above 0")
                return cls("slow", *_window(times), engine, amount)
            case ["hang" | "error" as kind, engine, times]:
                return cls(kind, *_window(times), engine)
            case ["lost", engine, at]:
                return cls("lost", _seconds(at), inf, engine)
            case ["pause", times]:
                return cls("pause", *_window(times), "")
            case ["jump", by, at]:
                return cls("jump", _seconds(at), inf, "", _seconds(by))
        raise ValueError("not a fault")


class DeviceFaults:
    """The faults of one engine."""

    def __init__(self, faults: Iterable[Fault], names: set[str]) -> None:
        """`names`: what the engine is called. Raises `ValueError` when windows of slowness overlap."""
        mine = sorted((f for f in faults if f.engine in names), key=lambda f: f.start_s)
        self._slow = [f for f in mine if f.kind == "slow"]
        self._others = [f for f in mine if f.kind != "slow"]
        for one, next_one in zip(self._slow, self._slow[1:], strict=False):
            if next_one.start_s < one.stop_s:
                raise ValueError(f"slow twice at second {next_one.start_s:g}; let the windows not overlap")

    @property
    def hangs(self) -> bool:
        """Whether it ever does."""
        return any(fault.kind == "hang" for fault in self._others)

    def at(self, elapsed: float) -> Kind | None:
        """What happens to a batch that begins now, None when it is scored."""
        return next((f.kind for f in self._others if f.start_s <= elapsed < f.stop_s), None)

    def ends(self, begin: float, seconds: float) -> float:
        """When `seconds` of work that begin at `begin` are done: at full speed but in the windows of slowness."""
        at, left = begin, seconds
        for fault in self._slow:
            if fault.stop_s <= at:
                continue
            if at < fault.start_s:
                if at + left <= fault.start_s:
                    break
                left -= fault.start_s - at
                at = fault.start_s
            if at + left * fault.amount <= fault.stop_s:
                return at + left * fault.amount
            left -= (fault.stop_s - at) / fault.amount
            at = fault.stop_s
        return at + left


def _window(text: str) -> tuple[float, float]:
    start, _, stop = text.partition("-")
    window = _seconds(start), _seconds(stop)
    if not 0 <= window[0] < window[1]:
        raise ValueError(f"{text}: the end must be after the beginning")
    return window


def _seconds(text: str) -> float:
    """ "2s", "-30s", "250ms"; without a unit they are seconds."""
    seconds = float(text[:-2]) / 1000.0 if text.endswith("ms") else float(text.removesuffix("s"))
    if not abs(seconds) <= LONGEST_S:
        raise ValueError(f"{text}: no time of at most {LONGEST_S:.0f} s")
    return seconds
