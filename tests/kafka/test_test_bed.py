"""The test bed itself: what it promises to the tests that stand on it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kafka import jars
from tests.kafka.broker import Broker
from tests.kafka.client import Client, Record
from tests.kafka.process import wait_until


@pytest.mark.kafka
def test_records_come_back_as_they_were_written(kafka: Client, unique: str) -> None:
    kafka.create_topic(unique, partitions=2)
    written = Record(b"value", key=b"key", partition=1, headers=[("h", b"x"), ("n", None)], timestamp=1_000)
    assert kafka.produce(unique, [written, Record(None, key=b"k", partition=1)]) == [(1, 0), (1, 1)]
    first, second = kafka.read_all(unique)
    assert (first.key, first.value, first.partition, first.offset, first.timestamp) == (b"key", b"value", 1, 0, 1_000)
    assert first.headers == (("h", b"x"), ("n", None))
    assert second.value is None
    assert kafka.end_offsets(unique) == {0: 0, 1: 2}
    assert kafka.committed(unique, unique) == {}


@pytest.mark.kafka
def test_a_restarted_broker_has_its_port_and_its_data(own_broker: Broker, own_kafka: Client, unique: str) -> None:
    own_kafka.create_topic(unique)
    own_kafka.produce(unique, [Record(b"before")])
    own_broker.restart()
    own_kafka.produce(unique, [Record(b"after")])
    assert [record.value for record in own_kafka.read_all(unique)] == [b"before", b"after"]


def test_children_end_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from tests.kafka.process import Process;"
        "child = Process(['sleep', '600'], pathlib.Path(sys.argv[1])); print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
    wait_until(lambda: not psutil.pid_exists(child), "the child has ended")


def test_a_machine_without_java_or_maven_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no `java`; install a JRE" in str(jars.missing())
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    assert 'found openjdk version "11.0.2"' in str(jars.missing())
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023-10-17' >&2\n")
    assert "no `mvn`; install maven" in str(jars.missing())
    (tmp_path / "scorelane" / f"kafka-{jars.VERSION}").mkdir(parents=True)
    assert jars.missing() is None
