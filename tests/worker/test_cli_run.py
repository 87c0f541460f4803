"""`scorelane run`: what it says of a GPU that processes share, and how it ends with a model that cannot be loaded."""

from pathlib import Path

import pytest

from tests.models import tiny_package
from tests.worker.test_cli import NO_BROKER, scorelane
from worker.cli.demo.worker_process import to_toml
from worker.cli.run import takes_turns
from worker.config import Config, KafkaConfig, TopicConfig
from worker.config_quality import SegmentConfig


def config(**topic: object) -> Config:
    return Config(
        kafka=KafkaConfig(bootstrap_servers="localhost:9092"),
        topics=(TopicConfig(name="ads", model="models/ads", **topic),),  # type: ignore[arg-type]
    )


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
    path = tmp_path / "worker.toml"
    topics = [{"name": "tips", "model": "models/tipping"}]
    path.write_text(to_toml({"kafka": {"bootstrap_servers": NO_BROKER}, "topics": topics, "admin": {"port": 0}}))
    ran = scorelane("run", "--config", path, "--processes", processes)
    assert ran.returncode == 2
    assert f"scorelane: topic tips: {tmp_path}/{said}" in ran.stderr
    assert "Traceback" not in ran.stderr and "next start" not in ran.stderr
    if processes > 1:
        assert "cannot start: stopping all" in ran.stderr
