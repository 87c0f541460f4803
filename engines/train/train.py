"""From a sample to a model package: net, light model and trees, measured on held-out rows by the engines themselves."""

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, get_args

import numpy as np
from numpy.typing import NDArray

import engines
from engines.base import run
from engines.errors import LoadError
from engines.package import Metric, Package, check_target, write_package
from engines.train.datasets import PAIRS, STREAMS, Dataset, load, split
from engines.train.export import to_light, to_onnx
from engines.train.fit import fit, predict
from engines.train.gbdt import fit_trees, predict_trees, trees_to_onnx
from engines.train.layout import Layout
from engines.train.measure import auc, log_loss
from engines.train.params import Kind, Net
from schemas.spec import builtin

MAX_PARITY: Final = 1e-5
"""Largest difference between a score of the trained model and the engine's that is delivered."""

_FEW_ROWS: Final = 2000
_BATCH: Final = 1024


@dataclass(frozen=True, slots=True)
class _Part:
    """One trained file of the package, the engine that runs it, and the trainer's own scores of the held-out rows."""

    file: str
    engine: str
    data: bytes
    expected: NDArray[np.floating]


def train_model(
    sample: str,
    kind: Kind,
    out: Path,
    *,
    name: str | None = None,
    version: str | None = None,
    rows: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    data: Path | None = None,
) -> Package:
    """Train on a sample and write `out/<name>/<version>/` with model.onnx, light.npz, trees.onnx, spec and manifest.

    `sample` is criteo, avazu, alimama (from `data`, or the source tree's files) or tipping, ad (made up, `rows` of
    them). `name` is the sample's and `version` the time in UTC where not given. The manifest's metrics are those of
    the written files, run by their engines on a fifth of the rows that no training saw. Raises `LoadError` for what
    cannot be trained or written, and when an engine's score differs from the trained model's by more than 1e-5.
    """
    if kind not in get_args(Kind):
        raise LoadError(f"model kind {kind!r} is unknown; choose one of {', '.join(get_args(Kind))}")
    if kind == "din" and sample not in PAIRS:
        raise LoadError(f"sample {sample!r} has no sequence to attend to; choose lr or mlp, or one of {[*PAIRS]}")
    name, version = name or sample, version or time.strftime("%Y%m%d.%H%M%S", time.gmtime())
    check_target(out, name, version)
    training, held_out = split(load(sample, rows_wanted=rows, seed=seed, data=data), seed)
    passes = epochs or (20 if len(training) < _FEW_ROWS else 5)
    parts = _fit(sample, kind, training, held_out, passes, seed)
    spec = builtin(sample)
    files = {part.file: part.data for part in parts} | {"spec.toml": spec.dumps()}
    metrics: dict[str, Metric] = {
        "sample": sample,
        "seed": seed,
        "epochs": passes,
        "rows_trained": len(training),
        "rows_held_out": len(held_out),
        "base_rate": round(float(training.labels.mean()), 6),
    }
    with TemporaryDirectory() as scratch:
        draft = write_package(Path(scratch), name="draft", version="1", kind=kind, files=files)
        for part in parts:
            metrics |= _measured(draft, part, held_out)
    metrics["base_log_loss"] = round(log_loss(held_out.labels, np.full(len(held_out), training.labels.mean())), 6)
    return write_package(
        out,
        name=name,
        version=version,
        kind=kind,
        files=files,
        metrics=metrics,
        note=_note(sample, held_out),
    )


def _fit(sample: str, kind: Kind, training: Dataset, held_out: Dataset, epochs: int, seed: int) -> list[_Part]:
    layout = Layout.of(builtin(sample), PAIRS.get(sample))
    linear = Net("lr", layout)
    weights = fit(linear, training.tensors, training.labels, epochs=epochs, seed=seed)
    linear_scores = predict(linear, weights, held_out.tensors)
    net, params, scores = linear, weights, linear_scores
    if kind != "lr":
        net = Net(kind, layout)
        params = fit(net, training.tensors, training.labels, epochs=epochs, seed=seed)
        scores = predict(net, params, held_out.tensors)
    trees = fit_trees(layout, training.tensors, training.labels, trees=60, leaves=15, seed=seed)
    return [
        _Part("model.onnx", "ort", to_onnx(net, params), scores),
        _Part("light.npz", "light", to_light(linear, weights), linear_scores),
        _Part("trees.onnx", "trees", trees_to_onnx(trees), predict_trees(trees, held_out.tensors)),
    ]


def _measured(draft: Package, part: _Part, held_out: Dataset) -> dict[str, Metric]:
    """AUC and log loss of one file by its engine, and how far the engine is from the trainer's scores."""
    engine = engines.load(part.engine, draft, max_batch=_BATCH)
    session = engine.open_session()
    scores = np.concatenate(
        [
            run(session, {name: tensor[start : start + _BATCH] for name, tensor in held_out.tensors.items()})
            for start in range(0, len(held_out), _BATCH)
        ]
    )
    session.close()
    engine.close()
    parity = float(np.abs(scores - part.expected).max())
    if not parity <= MAX_PARITY:
        raise LoadError(f"{part.file}: engine {part.engine} differs from training by {parity:.1e}; this is a bug")
    name = part.file.partition(".")[0]
    return {
        f"{name}_auc": round(auc(held_out.labels, scores), 6),
        f"{name}_log_loss": round(log_loss(held_out.labels, scores), 6),
        f"{name}_parity": parity,
    }


def _note(sample: str, held_out: Dataset) -> str:
    positives = int(held_out.labels.sum())
    negatives = len(held_out) - positives
    # Standard deviation of the rank statistic when scores and labels have nothing to do with each other.
    error = ((positives + negatives + 1) / (12 * positives * negatives)) ** 0.5
    note = (
        f"Measured on {len(held_out)} held-out rows, {positives} of them positive: "
        f"a model that knows nothing has AUC 0.5 with a standard error of {error:.3f}."
    )
    if len(held_out) < _FEW_ROWS:
        note += " On so few rows AUC and log loss mean little; the sample shows that the path works, not how well."
    if sample in STREAMS:
        note += " The stream is synthetic with a planted signal; the figures say nothing about real traffic."
    return note
