"""Real child processes; a child says on a pipe what it does, so that nothing waits by the clock."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from worker.supervisor import Restarts, Supervisor

# Says "ready <member>", then waits for a signal; says its name and ends with the given code.
OBEDIENT = """
import os, signal, sys
fd, member, code = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def obey(number, frame):
    os.write(fd, f"{signal.Signals(number).name} {member}\\n".encode())
    os._exit(code)
signal.signal(signal.SIGTERM, obey)
signal.signal(signal.SIGINT, obey)
os.write(fd, f"ready {member}\\n".encode())
while True:
    signal.pause()
"""
DEAF = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[1]), b"ready\\n")
while True:
    signal.pause()
"""
NO_DELAY = {"first_s": 0.0, "longest_s": 0.0}


class Fifo:
    """A named pipe that children write to, read line by line without blocking the loop."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._buffer = b""

    async def line(self) -> str:
        loop = asyncio.get_running_loop()
        while b"\n" not in self._buffer:
            ready = asyncio.Event()
            loop.add_reader(self._fd, ready.set)
            try:
                await ready.wait()
            finally:
                loop.remove_reader(self._fd)
            self._buffer += os.read(self._fd, 4096)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def fifo(tmp_path: Path):
    fifo = Fifo(tmp_path / "fifo")
    yield fifo
    fifo.close()


def script(fifo: Fifo, text: str, *args: object) -> list[str]:
    """Run `text` with a descriptor of the pipe as its first argument."""
    opened = f"import os, sys; sys.argv.insert(1, str(os.open({str(fifo.path)!r}, os.O_WRONLY)))\n{text}"
    return [sys.executable, "-c", opened, *map(str, args)]


def run(coroutine):
    async def bounded():
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_child_and_the_exit_code_is_zero(fifo: Fifo, number: signal.Signals) -> None:
    async def main() -> None:
        running = asyncio.create_task(Supervisor(lambda member: script(fifo, OBEDIENT, member, 0), 3).run())
        assert sorted([await fifo.line() for _ in range(3)]) == ["ready 0", "ready 1", "ready 2"]
        os.kill(os.getpid(), number)
        assert sorted([await fifo.line() for _ in range(3)]) == [f"{number.name} {i}" for i in range(3)]
        assert await running == 0

    run(main())


def test_a_child_that_fails_while_stopping_makes_the_exit_code_one(fifo: Fifo) -> None:
    async def main() -> None:
        running = asyncio.create_task(Supervisor(lambda member: script(fifo, OBEDIENT, member, member), 2).run())
        for _ in range(2):
            await fifo.line()
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 1

    run(main())


def test_a_killed_child_is_started_again_as_the_same_member(fifo: Fifo) -> None:
    pids: list[tuple[int, int]] = []

    async def main() -> None:
        supervisor = Supervisor(
            lambda member: script(fifo, OBEDIENT, member, 0),
            2,
            restarts=Restarts(**NO_DELAY),
            started=lambda member, pid: pids.append((member, pid)),
        )
        running = asyncio.create_task(supervisor.run())
        for _ in range(2):
            await fifo.line()
        os.kill(dict(pids)[1], signal.SIGKILL)
        assert await fifo.line() == "ready 1"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0

    run(main())
    assert [member for member, _ in pids] == [0, 1, 1]
    assert len({pid for _, pid in pids}) == 3


def test_a_child_that_was_drained_alone_is_started_again_and_is_no_death(
    fifo: Fifo, caplog: pytest.LogCaptureFixture
) -> None:
    pids: list[int] = []

    async def main() -> None:
        # One death would be one too many.
        supervisor = Supervisor(
            lambda member: script(fifo, OBEDIENT, member, 0),
            1,
            restarts=Restarts(limit=0, **NO_DELAY),
            started=lambda member, pid: pids.append(pid),
        )
        running = asyncio.create_task(supervisor.run())
        for _ in range(2):
            assert await fifo.line() == "ready 0"
            os.kill(pids[-1], signal.SIGTERM)
            assert await fifo.line() == "SIGTERM 0"
        assert await fifo.line() == "ready 0"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0

    with caplog.at_level(logging.INFO):
        run(main())
    assert len(set(pids)) == 3
    told = [(record.levelname, record.message) for record in caplog.records if "member 0" in record.message]
    assert told == [("INFO", "member 0 was drained and ended with 0, next start in 0.0 s")] * 2


def test_children_that_die_too_often_end_everything(fifo: Fifo) -> None:
    starts: list[int] = []

    def command(member: int) -> Sequence[str]:
        starts.append(member)
        # Member 0 works, member 1 dies at once: both must be gone in the end.
        return script(fifo, OBEDIENT, member, 0) if member == 0 else [sys.executable, "-c", "raise SystemExit(7)"]

    async def main() -> None:
        supervisor = Supervisor(command, 2, restarts=Restarts(limit=3, **NO_DELAY))
        assert await supervisor.run() == 1

    run(main())
    assert starts.count(1) == 4, "the first start and three more"


def test_a_wrong_configuration_is_not_tried_again() -> None:
    starts: list[int] = []

    def command(member: int) -> Sequence[str]:
        starts.append(member)
        return [sys.executable, "-c", "raise SystemExit(2)"]

    assert run(Supervisor(command, 1).run()) == 2
    assert starts == [0]


def test_a_child_that_does_not_obey_is_killed_after_the_grace_time(fifo: Fifo) -> None:
    async def main() -> None:
        running = asyncio.create_task(Supervisor(lambda member: script(fifo, DEAF), 1, grace_s=0.0).run())
        assert await fifo.line() == "ready"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 1

    run(main())


def test_children_end_when_the_supervisor_is_killed(fifo: Fifo) -> None:
    text = f"""
import asyncio
from worker.supervisor import Supervisor
asyncio.run(Supervisor(lambda member: {script(fifo, OBEDIENT, 0, 0)!r}, 1).run())
"""

    async def main() -> None:
        supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", text)
        try:
            assert await fifo.line() == "ready 0"
        finally:
            supervisor.kill()
            await supervisor.wait()
        assert await fifo.line() == "SIGTERM 0"

    run(main())


def test_restart_delays_double_and_end_when_deaths_are_too_frequent() -> None:
    restarts = Restarts(limit=5, window_s=60.0, first_s=0.5, longest_s=3.0)
    assert [restarts.died(float(second)) for second in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_old_deaths_are_forgotten() -> None:
    restarts = Restarts(limit=2, window_s=60.0, first_s=0.5)
    assert restarts.died(0.0) == 0.5
    assert restarts.died(59.0) == 1.0
    assert restarts.died(60.0) == 1.0, "the death at 0 is outside the window now"
    assert restarts.died(61.0) is None
    assert restarts.died(time.monotonic() + 1000.0) == 0.5
