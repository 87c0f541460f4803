"""The breakers of one engine: one a lane, and what concerns all lanes at once. Pure."""

from collections.abc import Callable, Iterator

from worker.breaker import Breaker, BreakerPolicy, Cause, State, Transition, normal_time

Observer = Callable[[str, Transition], None]
"""Told of each move: lane, transition."""


class Breakers:
    """A lane's trouble (a hang, an error on its data) opens its own breaker, a lost device or an outside alarm all."""

    def __init__(self, policy: BreakerPolicy, observer: Observer) -> None:
        self.lost = False
        """True once the device of the engine was lost; only a new process brings it back."""
        self._policy = policy
        self._observers = [observer]
        self._breakers: dict[str, Breaker] = {}
        self._held: dict[str, float] = {}  # alarm from outside -> since when, for lanes that open later

    def observe(self, observer: Observer) -> None:
        """Tell one more observer, after those before it."""
        self._observers.append(observer)

    def open_lane(self, lane: str) -> "LaneBreaker":
        """The breaker of one more lane. It learns the engine's normal service times by itself."""
        breaker = self._breakers[lane] = Breaker(normal_time(), self._policy)
        for name, since in self._held.items():
            self.tell(lane, breaker.hold(name, since))
        return LaneBreaker(lane, breaker, self)

    def lose(self, now: float) -> None:
        """The device is lost, in whichever lane that was noticed."""
        self.lost = True
        for lane, breaker in self._breakers.items():
            self.tell(lane, breaker.lost(now))

    def hold(self, name: str, now: float) -> None:
        """An alarm from outside keeps the engine out of use in all lanes until `release` with the same name."""
        self._held.setdefault(name, now)
        for lane, breaker in self._breakers.items():
            self.tell(lane, breaker.hold(name, now))

    def release(self, name: str, now: float) -> None:
        self._held.pop(name, None)
        for breaker in self._breakers.values():
            breaker.release(name, now)

    def states(self) -> Iterator[tuple[str, State]]:
        """(lane, state) of each breaker."""
        for lane, breaker in self._breakers.items():
            yield lane, breaker.state

    def tell(self, lane: str, transition: Transition | None) -> None:
        if transition is not None:
            for observer in self._observers:
                observer(lane, transition)


class LaneBreaker:
    """One lane's breaker, whose moves are told."""

    def __init__(self, lane: str, breaker: Breaker, breakers: Breakers) -> None:
        self._lane = lane
        self._breaker = breaker
        self._breakers = breakers

    def refused(self, now: float) -> str | None:
        """Why the engine must not answer for a batch now, None when it may. Makes the move that is due by time."""
        self._breakers.tell(self._lane, self._breaker.poll(now))
        state = self._breaker.state
        if state is State.CLOSED:
            return None
        return Cause.DEVICE_LOST if self._breakers.lost else state

    def admit(self, now: float) -> int | None:
        """Generation for a batch that the engine answers for, None when it must not."""
        return self._breaker.admit(now) if self._breaker.state is State.CLOSED else None

    def admit_probe(self, now: float) -> int | None:
        """Generation for a shadowed batch, None when no probe is wanted."""
        return self._breaker.admit(now) if self._breaker.state is State.HALF_OPEN else None

    def succeeded(self, generation: int, rows: int, seconds: float, now: float) -> None:
        self._breakers.tell(self._lane, self._breaker.succeeded(generation, rows, seconds, now))

    def failed(self, generation: int, now: float) -> None:
        self._breakers.tell(self._lane, self._breaker.failed(generation, now))

    def lose(self, now: float) -> None:
        self._breakers.lose(now)
