"""Several members of the group in one pod: one child process a core, restarted when it dies.

The children are processes of their own sessions, so that a Ctrl-C in the terminal reaches the supervisor only, which
passes it on once. A child gets SIGTERM when the supervisor dies without a word.
"""

import asyncio
import logging
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence

from worker.tether import Tether

log = logging.getLogger("scorelane.supervisor")

USAGE_ERROR = 2
"""Exit code of a child whose configuration or model is wrong: the next start would end the same way."""


class Restarts:
    """How often children may die: the delay before the next start, or None when it is too often. Pure."""

    def __init__(self, limit: int = 5, window_s: float = 60.0, first_s: float = 0.5, longest_s: float = 8.0) -> None:
        self.first_s = first_s
        """The delay after an end that is no death."""
        self._limit, self._window_s, self._longest_s = limit, window_s, longest_s
        self._deaths: deque[float] = deque(maxlen=limit)

    def died(self, now: float) -> float | None:
        """Count a death at `now` (monotonic seconds). The delay doubles with each death inside the window."""
        while self._deaths and now - self._deaths[0] >= self._window_s:
            self._deaths.popleft()
        if len(self._deaths) >= self._limit:
            return None
        self._deaths.append(now)
        return min(self._longest_s, self.first_s * 2.0 ** (len(self._deaths) - 1))


class Supervisor:
    """`await Supervisor(command, n).run()` returns the exit code when all children have ended.

    0 after a signal when every child ended with 0; 1 when a child failed then, or when children died too often;
    2 when a child reports a wrong configuration or model. `command(i)` is what to run as member i, `started(i, pid)`
    hears of each start. Each signal is passed on; a child that still runs `grace_s` after the first one is killed.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        processes: int,
        *,
        restarts: Restarts | None = None,
        grace_s: float = 30.0,
        started: Callable[[int, int], None] = lambda member, pid: None,
    ) -> None:
        self._command = command
        self._processes = processes
        self._restarts = restarts or Restarts()
        self._grace_s = grace_s
        self._started = started
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        try:
            async with asyncio.TaskGroup() as tasks:
                killer = tasks.create_task(self._kill_late())
                members = [tasks.create_task(self._keep(member)) for member in range(self._processes)]
                await asyncio.wait(members)
                killer.cancel()
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        return self._exit_code

    async def _keep(self, member: int) -> None:
        """Run one member until the end, again after each death, and after each drain that was not asked of all."""
        while not self._stopping.is_set():
            code = await self._run(member)
            if self._stopping.is_set():
                # Ended by the signal itself: it had not begun to work yet.
                failed = code not in (0, -signal.SIGTERM, -signal.SIGINT)
                self._exit_code = self._exit_code or int(failed)
            elif code == USAGE_ERROR:
                self._give_up(USAGE_ERROR, f"member {member} cannot start")
            elif code == 0:  # somebody stopped this one alone
                log.info("member %d was drained and ended with 0, next start in %.1f s", member, self._restarts.first_s)
                await self._wait_for_stop(self._restarts.first_s)
            elif (delay := self._restarts.died(time.monotonic())) is None:
                self._give_up(1, f"member {member} ended with {code}, children die too often")
            else:
                log.warning("member %d ended with %d, next start in %.1f s", member, code, delay)
                await self._wait_for_stop(delay)

    async def _run(self, member: int) -> int:
        tether = Tether()
        try:
            child = await asyncio.create_subprocess_exec(
                *tether.command(self._command(member), signal.SIGTERM),
                stdin=tether.stdin,
                start_new_session=True,
            )
            tether.attached()
            self._children[member] = child
            if self._stopping.is_set():
                child.terminate()
            self._started(member, child.pid)
            return await child.wait()
        finally:
            self._children.pop(member, None)
            tether.release()

    async def _kill_late(self) -> None:
        await self._stopping.wait()
        await asyncio.sleep(self._grace_s)
        for member, child in self._children.items():
            log.error("member %d did not end in %.0f s, killed", member, self._grace_s)
            child.kill()

    async def _wait_for_stop(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _signalled(self, number: signal.Signals) -> None:
        log.info("%s: stopping %d members", number.name, len(self._children))
        self._stop(number)

    def _give_up(self, code: int, why: str) -> None:
        log.error("%s: stopping all", why)
        self._exit_code = code
        self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping.set()
        for child in list(self._children.values()):
            child.send_signal(number)
