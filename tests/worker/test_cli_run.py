"""`scorelane run`: what it says of a GPU that processes share, and how it ends with a model that cannot be loaded."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.models import tiny_package
from tests.worker.test_cli import NO_BROKER, ROOT, scorelane
from worker.cli.demo.worker_process import to_toml
from worker.cli.run import member_command, takes_turns
from worker.config import Config, KafkaConfig, TopicConfig
from worker.config_quality import SegmentConfig


def config(**topic: object) -> Config:
    return Config(
        kafka=KafkaConfig(bootstrap_servers="localhost:9092"),
        topics=(TopicConfig(name="ads", model="models/ads", **topic),),  # type: ignore[arg-type]
    )


def worker_toml(folder: Path) -> Path:
    path = folder / "worker.toml"
    topics = [{"name": "tips", "model": "models/tipping"}]
    path.write_text(to_toml({"kafka": {"bootstrap_servers": NO_BROKER}, "topics": topics, "admin": {"port": 0}}))
    return path


@pytest.mark.parametrize(
    ("topic", "on_a_gpu"),
    [
        ({"engine": "trt"}, True),
        ({"engine": "ort", "fallback": ("light",)}, False),
        ({"engine": "ort", "segments": (SegmentConfig(name="new", model="m", engine="trt", tensor="ids"),)}, True),
    ],
)
def test_processes_take_turns_on_a_gpu_without_the_service(
    topic: dict[str, object], on_a_gpu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert takes_turns(config(**topic)) is on_a_gpu
    (tmp_path / "control").touch()
    assert not takes_turns(config(**topic))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("there", "said"),
    [(False, "models/tipping: cannot be read"), (True, "models/tipping/1/model.onnx: ")],
)
def test_a_model_that_is_missing_or_incomplete_is_exit_code_2_at_once(
    there: bool, said: str, processes: int, tmp_path: Path
) -> None:
    if there:
        tiny_package(tmp_path / "models", "tipping", name="tipping")
        (tmp_path / "models/tipping/1/model.onnx").unlink()
    ran = scorelane("run", "--config", worker_toml(tmp_path), "--processes", processes)
    assert ran.returncode == 2
    assert f"scorelane: topic tips: {tmp_path}/{said}" in ran.stderr
    assert "Traceback" not in ran.stderr and "next start" not in ran.stderr
    if processes > 1:
        assert "cannot start: stopping all" in ran.stderr


def test_members_are_not_started_from_the_working_directory(tmp_path: Path) -> None:
    for module in ("worker", "engines", "aiokafka"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('of the working directory')")
    command = member_command(tmp_path / "none.toml", 1, "info")
    source = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=source, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (
        2,
        f"scorelane: {tmp_path}/none.toml: No such file or directory; give --config FILE\n",
    )


def test_a_member_has_its_number_in_its_log(tmp_path: Path) -> None:
    ran = scorelane("run", "--config", worker_toml(tmp_path), "--processes", 2)
    own = [line for line in ran.stderr.splitlines() if " scorelane.service: " in line]
    assert own and all(re.search(r" pid=\d+ member=[01] scorelane", line) for line in own)
    [last] = [line for line in ran.stderr.splitlines() if line.endswith(": stopping all")]
    assert re.search(r" pid=\d+ scorelane\.supervisor: ", last)


def test_members_that_would_have_no_port_are_not_started(tmp_path: Path) -> None:
    ran = scorelane("run", "--config", worker_toml(tmp_path), "--processes", 3, SCORELANE_ADMIN_PORT="65534")
    assert ran.returncode == 2
    assert "--processes 3: admin.port 65534 leaves no ports for so many" in ran.stderr
