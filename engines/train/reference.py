"""Nets of the size that ranking models have in service, with random weights: what benchmarks run. Nothing is trained.

mlp: 256 numbers through 512 and 256 to 1, 0.53 MFLOP a row.
din: 50 steps of width 32 attended against the target, 20 other fields of width 32, then 128 and 64: about 1 MFLOP.
"""

from pathlib import Path
from typing import Final, Literal

from engines.package import Package, write_package
from engines.train.export import to_light, to_onnx
from engines.train.layout import Layout
from engines.train.params import Net
from schemas.spec import ModelSpec

_SPECS: Final = {
    "mlp": b"""
event = "custom"
key = "id"
features = [{ name = "dense", shape = [256], encoding = "raw" }]
""",
    "din": b"""
event = "custom"
key = "id"
features = [
    { name = "hist", shape = [50], pad = true, encoding = "raw", dtype = "int32", ids = 100000 },
    { name = "item", tensor = "ids", ids = 100000 },
    { name = "fields", tensor = "ids", shape = [20], encoding = "raw", dtype = "int32", ids = 5000 },
    { name = "dense", shape = [13], encoding = "raw" },
]
""",
}


def reference_package(out: Path, kind: Literal["mlp", "din"], *, seed: int = 0, version: str = "1") -> Package:
    """Write `out/reference-<kind>/<version>/`: the same seed gives the same model and light model."""
    spec = ModelSpec.parse(_SPECS[kind], f"reference {kind}")
    layout = Layout.of(spec, {"hist": "item"} if kind == "din" else None)
    hidden = {"mlp": (512, 256), "din": (128, 64)}[kind]
    net = Net(kind, layout, embed=32, hidden=hidden)
    light = Net("lr", layout)
    return write_package(
        out,
        name=f"reference-{kind}",
        version=version,
        kind=kind,
        files={
            "model.onnx": to_onnx(net, net.start(seed)),
            "light.npz": to_light(light, light.start(seed)),
            "spec.toml": spec.dumps(),
        },
        metrics={"base_rate": 0.5},
        note="Random weights, for benchmarks only.",
    )
