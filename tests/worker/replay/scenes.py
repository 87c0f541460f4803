"""Small scenes: a tiny model, a modelled primary, its light engine, and traffic in four classes."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from engines.package import Package
from tests.models import tiny_package
from worker.config import Config, KafkaConfig, TopicConfig, WorkerConfig
from worker.config_quality import ClassConfig
from worker.replay.broker import Costs
from worker.replay.device import Pace
from worker.replay.faults import Fault
from worker.replay.pipeline import Scene
from worker.replay.synthetic import Traffic, make

MIX = {"L1": 0.2, "L2": 0.3, "L3": 0.3, "L4": 0.2}
PRIMARY = Pace(fixed_s=2e-3, row_s=40e-6, jitter=0.1)
"""12 ms for a batch of 256: 21,000 events a second at most."""
LIGHT = Pace(fixed_s=0.2e-3, row_s=1.5e-6)

_directory = TemporaryDirectory(prefix="scorelane-replay-")


@cache
def package() -> Package:
    return tiny_package(Path(_directory.name), "tipping")


def classes(**limits: Any) -> tuple[ClassConfig, ...]:
    weights = (("L1", 8.0), ("L2", 4.0), ("L3", 2.0), ("L4", 1.0))
    return tuple(
        ClassConfig(name=name, weight=weight, shed="skip" if name == "L4" else "light", **limits)
        for name, weight in weights
    )


def config(lanes: int = 1, class_limits: Mapping[str, Any] | None = None, **topic: Any) -> Config:
    model = TopicConfig(**{"name": "tips", "model": str(package().path), **topic})
    return Config(
        kafka=KafkaConfig(bootstrap_servers="none:1"),
        topics=(model,),
        worker=WorkerConfig(lanes=lanes),
        classes=classes(**(class_limits or {})),
    )


def scene(
    *faults: str,
    traffic: Traffic,
    primary: Pace = PRIMARY,
    light: Pace = LIGHT,
    whole: Config | None = None,
    costs: Costs | None = None,
    **more: Any,
) -> Scene:
    return Scene(
        config=whole or config(),
        trace=make(traffic, "tips", package().spec, "msgpack"),
        paces={"ort": primary, "light": light},
        faults=[Fault.parse(fault) for fault in faults],
        costs=costs or Costs(),
        **more,
    )
