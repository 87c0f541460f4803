"""Model packages with random weights, made in milliseconds and without a training library, for everyone's tests."""

from pathlib import Path
from typing import Any

import numpy as np

from engines.package import Package, write_package
from engines.train.datasets import PAIRS
from engines.train.export import to_light, to_onnx
from engines.train.layout import Layout
from engines.train.params import Kind, Net, Params
from schemas.rows import Tensors
from schemas.spec import ModelSpec, builtin


def tiny_package(
    directory: Path,
    spec: str | ModelSpec = "tipping",
    kind: Kind = "mlp",
    seed: int = 0,
    *,
    name: str = "tiny",
    version: str = "1",
) -> Package:
    """`directory/<name>/<version>` with model.onnx of this kind and light.npz, both random: scores differ by row."""
    described = builtin(spec) if isinstance(spec, str) else spec
    net, params = tiny_net(described, kind, seed, PAIRS.get(spec) if isinstance(spec, str) else None)
    light, light_params = tiny_net(described, "lr", seed + 1)
    return write_package(
        directory,
        name=name,
        version=version,
        kind=kind,
        files={
            "model.onnx": to_onnx(net, params),
            "light.npz": to_light(light, light_params),
            "spec.toml": described.dumps(),
        },
        metrics={"base_rate": 0.25},
        created_ms=0,
    )


def tiny_net(spec: ModelSpec, kind: Kind, seed: int, pairs: dict[str, str] | None = None) -> tuple[Net, Params]:
    """A small net whose parameters are all random and large enough that every input moves the score."""
    net = Net(kind, Layout.of(spec, pairs), embed=4, hidden=(16, 8), attention=8)
    rng = np.random.default_rng(seed)
    params = net.start(seed)
    for key, array in params.items():
        if key.endswith(".scale"):
            params[key] = rng.uniform(0.5, 2.0, array.shape).astype(np.float32)
        elif key.startswith("hidden") and key.endswith(".bias"):
            # Positive, so that no layer of ReLUs is silent for a row and hides a mix-up of rows.
            params[key] = rng.uniform(0.5, 1.5, array.shape).astype(np.float32)
        elif key.endswith((".table", ".mean", ".bias")) or kind == "lr":
            spread = 0.05 if key == "head.weight" else 0.5
            params[key] = (rng.standard_normal(array.shape) * spread).astype(np.float32)
    return net, params


def random_batch(spec: ModelSpec, n: int, seed: int = 0) -> Tensors:
    """A valid batch of n rows: skewed numbers of both signs, ids over their whole range, sequences of every length."""
    rng = np.random.default_rng(seed)
    batch: Tensors = {}
    for tensor in spec.tensors:
        features = spec.by_tensor[tensor.name]
        if tensor.dtype == "float32":
            values: Any = rng.standard_normal((n, *tensor.shape)) * 10.0 ** rng.uniform(-2, 4, (n, *tensor.shape))
        else:
            limits = np.concatenate([np.full(feature.size, feature.cardinality or 1) for feature in features])
            values = (rng.random((n, limits.size)) * limits).astype(np.int64)
            if features[0].pad:
                values[np.arange(limits.size) >= rng.integers(0, limits.size + 1, (n, 1))] = 0
            values = values.reshape((n, *tensor.shape))
        batch[tensor.name] = np.ascontiguousarray(values, dtype=tensor.dtype)
    return batch
