import asyncio
import gc
import logging
import subprocess
import sys

import pytest
from aiokafka.errors import UnknownMemberIdError

from worker.cli.loop import run


def test_closed_standard_streams_are_open_on_nothing() -> None:
    source = (
        "import os; from worker.cli.loop import run\n"
        "async def main():\n"
        "    os.write(report, b' '.join(os.readlink(f'/proc/self/fd/{n}').encode() for n in range(3)))\n"
        "report = int(os.environ['REPORT']); run(main())\n"
    )
    script = 'exec 9>&1; REPORT=9 exec "$0" -c "$1" <&- >&- 2>&-'
    done = subprocess.run(["/bin/sh", "-c", script, sys.executable, source], capture_output=True, text=True, check=True)
    assert done.stdout == "/dev/null /dev/null /dev/null"


def fail_unseen(error: Exception) -> None:
    async def fail() -> None:
        raise error

    async def main() -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.wait({task})
        del task
        gc.collect()

    run(main())


def test_the_end_of_an_abandoned_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    fail_unseen(UnknownMemberIdError())
    [line] = caplog.records
    assert (line.levelno, line.exc_info) == (logging.WARNING, None)
    assert line.getMessage() == "a request that was given up ended with UnknownMemberIdError()"


def test_other_errors_that_nobody_sees_keep_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    fail_unseen(ValueError("a bug"))
    [line] = caplog.records
    assert (line.name, line.levelno) == ("asyncio", logging.ERROR) and line.exc_info is not None
