"""The README's way from rows to scores, its commands run as they stand there, on a real Kafka."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.client import Client
from tests.kafka.process import free_port
from tests.test_docs import FENCE, README, ROOT

pytestmark = pytest.mark.kafka

# Kafka's own tool is not among the jars that the tests resolve; this one takes the options that the README uses.
KAFKA_TOPICS = f"""#!{sys.executable}
import argparse, asyncio
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
options = argparse.ArgumentParser()
options.add_argument("--bootstrap-server", required=True)
options.add_argument("--create", action="store_true", required=True)
options.add_argument("--topic", required=True)
options.add_argument("--partitions", type=int, required=True)
asked = options.parse_args()
async def main():
    admin = AIOKafkaAdminClient(bootstrap_servers=asked.bootstrap_server)
    await admin.start()
    await admin.create_topics([NewTopic(asked.topic, asked.partitions, 1)])
    await admin.close()
asyncio.run(main())
"""


def test_the_commands_of_the_readme_lead_from_rows_to_scores(kafka: Client, tmp_path: Path) -> None:
    chapter = README.read_text().partition("## From rows to scores")[2].partition("\n## ")[0]
    admin_port = free_port()
    chapter = chapter.replace("localhost:9092", kafka.bootstrap).replace("localhost:8080", f"localhost:{admin_port}")
    blocks = FENCE.findall(chapter)
    [config] = [body for kind, body in blocks if kind == "toml"]
    commands = "".join(body for kind, body in blocks if kind == "bash")
    assert all(name in commands for name in ("model train", "kafka-topics.sh", "check", "run", "produce", "tail"))
    (tmp_path / "worker.toml").write_text(config)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    tool = tmp_path / "kafka-topics.sh"
    tool.write_text(KAFKA_TOPICS)
    tool.chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"trap 'kill %1 2>/dev/null || true' EXIT\n{commands}\nkill %1\nwait %1"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "SCORELANE_ADMIN_PORT": str(admin_port)},
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
