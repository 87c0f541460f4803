"""The `scorelane` command as a process: a standard output that refuses, interrupts, and a terminal that closes."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.models import tiny_package
from tests.worker.test_cli import NO_BROKER, ROOT, scorelane
from worker.cli.demo.worker_process import to_toml

LONG = ["check", "--example"]
"""More than a buffer of output at once."""


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "worker.cli", *map(str, arguments)]


@pytest.mark.parametrize("arguments", [LONG, ["--help"], ["tail", "--help"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("the system has no /dev/full")
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(command(*arguments), stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, "scorelane: stdout: No space left on device\n")


@pytest.mark.parametrize("arguments", [LONG, ["--help"], ["tail", "--help"]])
def test_a_reader_that_has_left_ends_it_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = subprocess.run(
            command(*arguments), stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=60
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("module", ["click", "aiokafka"])
def test_an_interrupt_while_modules_are_read_is_no_traceback(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    ran = scorelane("record", "t", "--bootstrap", "127.0.0.1:1", "--out", tmp_path / "t.trace", PYTHONPATH=path)
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (130, "", "")


@contextmanager
def starting(folder: Path, disposition: signal.Handlers) -> Iterator["subprocess.Popen[str]"]:
    """A worker that waits for its broker, which says nothing; SIGHUP as the shell has left it to the worker."""
    tiny_package(folder / "models", "tipping", name="tipping")
    with socket.create_server(("127.0.0.1", 0)) as broker:
        kafka = {"bootstrap_servers": f"127.0.0.1:{broker.getsockname()[1]}"}
        topics = [{"name": "tips", "model": "models/tipping"}]
        (folder / "worker.toml").write_text(to_toml({"kafka": kafka, "topics": topics, "admin": {"port": 0}}))
        before = signal.signal(signal.SIGHUP, disposition)  # the child's too
        try:
            worker = subprocess.Popen(
                command("run", "--config", folder / "worker.toml"), stderr=subprocess.PIPE, text=True, cwd=ROOT
            )
        finally:
            signal.signal(signal.SIGHUP, before)
        with worker:
            try:
                yield worker
            finally:
                worker.kill()


def test_a_thread_that_is_stuck_in_a_call_does_not_keep_a_worker_that_is_stopped(tmp_path: Path) -> None:
    folder = tiny_package(tmp_path / "models", "tipping", name="tipping").path
    (folder / "model.onnx").unlink()
    os.mkfifo(folder / "model.onnx")  # as a disk that does not answer
    topics = [{"name": "tips", "model": "models/tipping"}]
    kafka = {"bootstrap_servers": NO_BROKER}
    (tmp_path / "worker.toml").write_text(to_toml({"kafka": kafka, "topics": topics, "admin": {"port": 0}}))
    call = command("run", "--config", tmp_path / "worker.toml")
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        try:
            with (folder / "model.onnx").open("wb"):  # waits for the worker to read
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(timeout=30) == 0
        finally:
            worker.kill()


@pytest.mark.parametrize("daemon", [True, False])
@pytest.mark.parametrize(("seconds", "end"), [(0.05, "in order"), (600, "")])
def test_a_thread_that_is_stuck_is_left_out_and_one_that_ends_is_waited_for(
    daemon: bool, seconds: float, end: str
) -> None:
    source = (
        "import atexit, threading, time; from worker.cli.leaving import leave\n"
        'atexit.register(print, "in order", end="")\n'
        f"threading.Thread(target=time.sleep, args=({seconds},), daemon={daemon}).start()\n"
        "leave(3)\n"
    )
    ran = subprocess.run([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=60)
    assert (ran.returncode, ran.stdout) == (3, end)


def test_an_interrupt_while_a_stuck_thread_is_waited_for_ends_the_wait() -> None:
    source = (
        "import signal, threading, time; from worker.cli.leaving import leave\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.1)\n"
        "leave(3)\n"
    )
    ran = subprocess.run([sys.executable, "-c", source], stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=20)
    assert (ran.returncode, ran.stderr) == (3, "")


def until(worker: "subprocess.Popen[str]", text: str) -> None:
    assert worker.stderr is not None
    assert any(text in line for line in worker.stderr)


def test_a_closed_terminal_stops_a_worker_as_sigterm_does(tmp_path: Path) -> None:
    with starting(tmp_path, signal.SIG_DFL) as worker:
        until(worker, "loaded")
        worker.send_signal(signal.SIGHUP)
        until(worker, "stopped before it was ready")
        assert worker.wait(timeout=60) == 0


def test_a_worker_under_nohup_goes_on(tmp_path: Path) -> None:
    with starting(tmp_path, signal.SIG_IGN) as worker:
        until(worker, "loaded")
        ignored = Path(f"/proc/{worker.pid}/status").read_text().partition("SigIgn:")[2].split()[0]
        assert int(ignored, 16) & 1 << (signal.SIGHUP - 1)
        worker.send_signal(signal.SIGHUP)
        worker.send_signal(signal.SIGTERM)
        until(worker, "stopped before it was ready")
        assert worker.wait(timeout=60) == 0
