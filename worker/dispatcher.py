"""Which engine scores a batch, and what happens when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from engines.base import Features, Scores
from engines.errors import DeviceLost, EngineError
from schemas.errors import InvalidEvent
from worker.attempt import Attempt
from worker.batch import Batch
from worker.clock import Clock
from worker.errors import NoEngineLeft
from worker.outcome import NO_SCORES, Absent, Outcome, Overdue, Tier, unscored
from worker.route import Candidate, Route, Router
from worker.service_time import REFRESH_S, ServiceTime
from worker.troubles import Troubles

TURN_S: Final = 0.002
TURN_PART: Final = 0.1
"""The event loop may be late at the last moment by a turn: a poll that is taken in, what other lanes have to publish.
So much of the wait, and at most such a part of it, is kept for that."""


class Started(NamedTuple):
    """Rows of a batch that go the same way."""

    batch: Batch
    answer: asyncio.Task[list[Outcome]]


class Dispatcher:
    """Sends the rows of a batch to their engines, and down the chain until one answers.

    - The router says where rows go first: by budget, segment, warmth, and what the breakers refuse.
    - An engine that has not answered at the last moment for the next one is not waited for any longer. It goes on (a
      device call cannot be cancelled) and its speed is learned when it ends; if it never does, its session is retired.
    - When all engines have failed, one of them over the batch as a whole, it is halved until the row is alone that they
      refuse; that row is refused and its neighbours get their scores. Rows whose scores were not finite, no more than
      that, are refused at once. Where the last engine has not looked at the batch (hung, lost, without a session)
      nothing is known against its rows: a new session is waited for; without one `NoEngineLeft` ends the worker.
    - While a breaker is half open, batches are probes: the engine runs them in the shadow of the one that answers.
    """

    def __init__(
        self,
        chain: Sequence[Tier],
        router: Router,
        clock: Clock,
        *,
        publishing: ServiceTime,
        troubles: Troubles,
        segments: Sequence[Tier] = (),
    ) -> None:
        """`chain`: the primary first, the last one always answers. `segments`: engines that the router names only."""
        self._chain = chain
        self._segments = segments
        self._router = router
        self._clock = clock
        self._publishing = publishing
        self._troubles = troubles

    @property
    def has_fallback(self) -> bool:
        """Whether another engine can answer in the primary's place."""
        return len(self._chain) > 1

    def start(self, batch: Batch, tasks: asyncio.TaskGroup) -> list[Started]:
        """Begin to score a batch: its parts, each on its own way, so that none waits for the others' answers. The
        outcomes of a part together hold its rows. `tasks` also takes what outlives the answers."""
        started = self._clock.monotonic()
        return [Started(part, tasks.create_task(answer)) for part, answer in self._parts(batch, started, tasks)]

    def _parts(
        self, batch: Batch, started: float, tasks: asyncio.TaskGroup
    ) -> Iterator[tuple[Batch, Coroutine[object, object, list[Outcome]]]]:
        if not len(batch):
            yield batch, _known(Outcome(batch, NO_SCORES, "", "", "", None, started, 0.0))
            return
        features = batch.features()
        if batch.shed is not None:
            reason = _shed_reason(batch, self._chain[0].engine)
            if batch.shed == "light":
                yield batch, self._down(batch, features, self._chain[-1:], reason, started, tasks)
            else:
                yield batch, _known(unscored(batch, batch.shed, reason, self._clock.monotonic(), started))
            return
        routes = self._routes(batch, features, started)
        self._shadow(features, len(batch), routes, tasks)
        if len(routes) == 1:
            yield batch, self._follow(batch, features, routes[0], started, tasks)
            return
        for route, part in zip(routes, batch.parts(*(route.rows for route in routes)), strict=True):
            yield part, self._follow(part, part.features(), route, started, tasks)

    def _routes(self, batch: Batch, features: Features, now: float) -> list[Route]:
        chain = [
            Candidate(
                tier.engine,
                tier.service_time,
                tier.runs.warm,
                tier.breaker.refused(now) if tier.breaker is not None else None,
            )
            for tier in (*self._segments, *self._chain)
        ]
        rows = len(batch)
        last = self._chain[-1]
        after_s = last.service_time.predict(rows) + self._publishing.predict(rows)
        # An engine that nothing is given to any more, for being too slow, would never be found quick again.
        tested = now - last.ran_at < REFRESH_S and not last.service_time.doubted
        least_s = after_s if tested else 0.0
        return self._router.split(chain, batch.deadlines(), dict(features), now, after_s=after_s, least_s=least_s)

    async def _follow(
        self, batch: Batch, features: Features, route: Route, started: float, tasks: asyncio.TaskGroup
    ) -> list[Outcome]:
        if route.engine is None:
            policy = (route.reason or "").partition(":")[2]
            return [unscored(batch, policy, route.reason or "", self._clock.monotonic(), started)]
        own = [tier for tier in self._segments if tier.engine == route.engine]
        first = next((i for i, tier in enumerate(self._chain) if tier.engine == route.engine), 0)
        return await self._down(batch, features, [*own, *self._chain[first:]], route.reason, started, tasks)

    async def _down(
        self,
        batch: Batch,
        features: Features,
        chain: Sequence[Tier],
        reason: str | None,
        started: float,
        tasks: asyncio.TaskGroup,
    ) -> list[Outcome]:
        answered: list[Outcome] = []
        cause, failure, judged = "error", "no engine may be used", False
        raised = False
        """Whether an engine refused the batch as a whole, perhaps for one row of it."""
        for position, tier in enumerate(chain):
            following = chain[position + 1] if position + 1 < len(chain) else None
            judged = False
            try:
                scores = await self._attempt(tier, following, batch, features, tasks)
            except Overdue as error:
                cause, failure = "overdue", str(error)
            except TimeoutError:
                cause, failure = "hung", "the batch did not come back in time; its session was left behind"
            except DeviceLost as error:
                cause, failure = "device_lost", str(error)
            except Absent as error:
                cause, failure = "error", str(error)
            except EngineError as error:
                cause, failure, judged = "error", f"{type(error).__name__}: {error}", True
                raised = True
            else:
                finite = np.isfinite(scores)
                if finite.all():
                    return [*answered, self._answered(batch, scores, tier, reason, started)]
                cause, failure, judged = "not_finite", "the score is not finite", True
                if finite.any():
                    good, batch = batch.parts(np.flatnonzero(finite), np.flatnonzero(~finite))
                    features = batch.features()
                    answered.append(self._answered(good, scores[finite], tier, reason, started))
            reason = reason or f"{tier.engine}:{cause}"
            self._troubles.failed(tier.engine, cause, len(batch), failure, self._clock.monotonic())
        if not judged:  # nothing is known against the rows: they are no dead letters
            if cause == "device_lost" or not await chain[-1].runs.back():
                raise NoEngineLeft(
                    f"engine {chain[-1].engine}: {failure}; the process ends so that it is started again"
                )
            return [*answered, *await self._down(batch, features, chain[-1:], reason, started, tasks)]
        if not raised or len(batch) == 1:
            now = self._clock.monotonic()
            refused = InvalidEvent("unscorable", f"no engine could score it; the last said: {failure}")
            return [*answered, Outcome(batch, NO_SCORES, "", "", "", reason, now, now - started, refused)]
        for part in batch.split():
            answered += await self._down(part, part.features(), chain, reason, started, tasks)
        return answered

    def _answered(self, batch: Batch, scores: Scores, tier: Tier, reason: str | None, started: float) -> Outcome:
        now = self._clock.monotonic()
        return Outcome(batch, scores, tier.engine, tier.model, tier.version, reason, now, now - started)

    async def _attempt(
        self, tier: Tier, following: Tier | None, batch: Batch, features: Features, tasks: asyncio.TaskGroup
    ) -> Scores:
        """Scores from one engine. Raises `Overdue`, `TimeoutError` (hung), `EngineError`."""
        generation = None
        if tier.breaker is not None:
            generation = tier.breaker.admit(self._clock.monotonic())
            if generation is None:
                raise Absent("its breaker refuses it")
        attempt = Attempt(tier, features, len(batch), generation, self._clock)
        if tier.runs.inline:
            return await attempt.run()
        return await attempt.answer(self._wait_s(batch, following), tasks)

    def _wait_s(self, batch: Batch, following: Tier | None) -> float:
        """Until the last moment for the next engine; endless where it cannot be in time, or where there is none."""
        if following is None:
            return np.inf
        rows, now = len(batch), self._clock.monotonic()
        # Twice: another lane's batch may be before this one at the engine that they share.
        reserve = 2 * following.service_time.predict(rows) + self._publishing.predict(rows)
        deadlines = batch.deadlines()
        in_time = float(deadlines[deadlines > now].min(initial=np.inf)) - reserve - now
        in_time -= min(TURN_S, TURN_PART * in_time)
        return in_time if in_time > 0.0 else np.inf  # the better score is worth the wait then

    def _shadow(self, features: Features, rows: int, routes: list[Route], tasks: asyncio.TaskGroup) -> None:
        """Let engines that answer nothing see a copy of the batch: probes of half-open breakers, and every `REFRESH_S`
        an engine of the chain that is predicted to be too slow, which would otherwise never be found quick again. One
        at a time: the next would wait behind it, and be taken for slow."""
        now = self._clock.monotonic()
        answering = {route.engine for route in routes}
        for position, tier in enumerate((*self._chain, *self._segments)):
            if tier.breaker is None or not tier.runs.warm or tier.engine in answering:
                continue
            if tier.shadow is not None and not tier.shadow.done():
                continue
            generation = tier.breaker.admit_probe(now)
            if generation is None and position < len(self._chain) and now - tier.ran_at >= REFRESH_S:
                generation = tier.breaker.admit(now)
            if generation is not None:
                tier.shadow = Attempt(tier, features, rows, generation, self._clock).shadow(tasks)


async def _known(outcome: Outcome) -> list[Outcome]:
    return [outcome]


def _shed_reason(batch: Batch, primary: str) -> str:
    match batch.shed_why:
        case None:
            return f"{primary}:{batch.closed_by}"
        case "late":
            return f"late:{batch.shed}"
        case why:
            return f"shed:{why}"
