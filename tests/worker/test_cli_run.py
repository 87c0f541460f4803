from pathlib import Path

import pytest

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
