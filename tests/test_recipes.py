"""The recipes of docs/models.md, run as they stand there."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import engines
from engines.base import run
from engines.errors import LoadError
from engines.package import Package, write_package
from tests.test_docs import ROOT, fences

WEIGHTS, BIAS = np.array([0.7, -1.3], np.float32), 0.2
SPEC = b"""event = "custom"
features = [{ name = "age", tensor = "dense" }, { name = "price", tensor = "dense" }]
"""


def logistic_regression() -> onnx.ModelProto:
    """As skl2onnx writes a binary LogisticRegression without ZipMap: both classes' probabilities and the label."""
    classifier = helper.make_node(
        "LinearClassifier",
        ["dense"],
        ["label", "raw"],
        domain="ai.onnx.ml",
        coefficients=[*(-WEIGHTS).tolist(), *WEIGHTS.tolist()],
        intercepts=[-BIAS, BIAS],
        classlabels_ints=[0, 1],
        multi_class=1,
        post_transform="LOGISTIC",
    )
    normalizer = helper.make_node("Normalizer", ["raw"], ["probabilities"], domain="ai.onnx.ml", norm="L1")
    graph = helper.make_graph(
        [classifier, normalizer],
        "sklearn",
        [helper.make_tensor_value_info("dense", TensorProto.FLOAT, [None, 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2]),
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def package(directory: Path, version: str, model: bytes) -> Package:
    files = {"model.onnx": model, "spec.toml": SPEC}
    return write_package(directory, name="sklearn", version=version, kind="lr", files=files)


def test_a_model_of_scikit_learn_is_cut_to_one_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(logistic_regression(), tmp_path / "sklearn.onnx")
    whole = package(tmp_path, "whole", (tmp_path / "sklearn.onnx").read_bytes())
    with pytest.raises(LoadError, match=r"outputs are \['label', 'probabilities'\]"):
        engines.load("ort", whole)

    monkeypatch.chdir(tmp_path)
    [recipe] = [body for body in fences(ROOT / "docs" / "models.md", "python") if "sklearn" in body]
    exec(compile(recipe, "models.md", "exec"), {})

    engine = engines.load("ort", package(tmp_path, "cut", Path("model.onnx").read_bytes()))
    session = engine.open_session()
    rows = np.array([[0, 0], [1, 0], [0, 1], [3, -2], [-4, 5]], np.float32)
    scores = run(session, {"dense": rows})
    assert scores.shape == (5,)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-(rows @ WEIGHTS + BIAS))), atol=1e-6)
    session.close()
    engine.close()
