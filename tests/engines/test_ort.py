"""ONNX Runtime engine against a session that onnxruntime's defaults make."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import engines
from engines.base import Engine, Scores, run
from engines.errors import LoadError, RunError
from engines.ort import OrtEngine
from engines.package import Package, write_package
from schemas.rows import Tensors
from tests.engines.contract import EngineContract
from tests.models import random_batch, tiny_package


def direct(package: Package, batch: Tensors) -> Scores:
    """Scores of a bare runtime session, row by row."""
    session = onnxruntime.InferenceSession(package.file("model.onnx"), providers=["CPUExecutionProvider"])
    n = len(next(iter(batch.values())))
    rows = [session.run(None, {name: tensor[i : i + 1] for name, tensor in batch.items()})[0] for i in range(n)]
    scores: Scores = np.concatenate(rows)
    return scores


class TestContract(EngineContract):
    def load(self, package: Package, max_batch: int) -> Engine:
        return engines.load("ort", package, max_batch=max_batch)

    def reference(self, package: Package, batch: Tensors) -> Scores:
        return direct(package, batch)


@pytest.mark.parametrize(("spec", "kind"), [("criteo", "mlp"), ("avazu", "lr"), ("alimama", "din"), ("ad", "din")])
def test_every_spec_is_scored_as_by_a_direct_run(tmp_path: Path, spec: str, kind: str) -> None:
    package = tiny_package(tmp_path, spec, kind)  # type: ignore[arg-type]
    batch = random_batch(package.spec, 20)
    scores = run(OrtEngine(package, max_batch=20).open_session(), batch)
    np.testing.assert_allclose(scores, direct(package, batch), atol=1e-6)
    assert len(np.unique(scores)) == 20


def test_id_outside_the_table_fails_the_batch_only(tmp_path: Path) -> None:
    package = tiny_package(tmp_path)
    session = OrtEngine(package, max_batch=4).open_session()
    batch = random_batch(package.spec, 4)
    bad = {**batch, "ids": np.full((4, 4), 10**6, np.int32)}
    with pytest.raises(RunError, match="4 rows"):
        session.submit(bad)
    np.testing.assert_allclose(run(session, batch), direct(package, batch), atol=1e-6)


def model(
    inputs: dict[str, tuple[int, list[object]]], output: tuple[int, list[object]] = (TensorProto.FLOAT, ["n"])
) -> bytes:
    """A model that takes these inputs and returns the sum of the numbers of `dense`."""
    nodes = [
        helper.make_node("ReduceSum", ["dense", "axes"], ["total"], keepdims=len(output[1]) - 1),
        helper.make_node("Cast", ["total"], ["score"], to=output[0]),
    ]
    infos = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    outputs = [helper.make_tensor_value_info("score", *output)]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "sum", infos, outputs, [axes])
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


DENSE = (TensorProto.FLOAT, ["n", 35])
IDS = (TensorProto.INT32, ["n", 4])


def package_of(directory: Path, onnx: bytes) -> Package:
    spec = tiny_package(directory).spec.dumps()
    files = {"model.onnx": onnx, "spec.toml": spec}
    return write_package(directory, name="other", version="1", kind="sum", files=files)


@pytest.mark.parametrize("shape", [["n"], ["n", 1]])
def test_output_of_one_column_is_flattened(tmp_path: Path, shape: list[object]) -> None:
    package = package_of(tmp_path, model({"dense": DENSE, "ids": IDS}, (TensorProto.FLOAT, shape)))
    batch = random_batch(package.spec, 3)
    scores = run(OrtEngine(package, max_batch=3).open_session(), batch)
    assert scores.shape == (3,)
    np.testing.assert_allclose(scores, batch["dense"].sum(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("onnx", "message"),
    [
        (b"not a model", "not loadable"),
        (model({"dense": DENSE}), "inputs are"),
        (model({"dense": DENSE, "ids": (TensorProto.INT64, ["n", 4])}), "ids is tensor"),
        (model({"dense": (TensorProto.FLOAT, ["n", 36]), "ids": IDS}), "dense has rows"),
        (model({"dense": DENSE, "ids": (TensorProto.INT32, ["n", 4, 1])}), "ids has rows"),
        (model({"dense": (TensorProto.FLOAT, [8, 35]), "ids": IDS}), "fixed batch of 8"),
        (model({"dense": DENSE, "ids": IDS}, (TensorProto.DOUBLE, ["n"])), "output score is"),
    ],
)
def test_model_that_does_not_fit_the_spec_is_not_loaded(tmp_path: Path, onnx: bytes, message: str) -> None:
    package = package_of(tmp_path, onnx)
    with pytest.raises(LoadError, match=message) as caught:
        OrtEngine(package)
    assert "model.onnx" in str(caught.value) and (
        "export" in str(caught.value) or "change" in str(caught.value) or "rename" in str(caught.value)
    )


def test_threads_are_pinned_and_do_not_spin(tmp_path: Path) -> None:
    engine = OrtEngine(tiny_package(tmp_path), threads=2)
    assert engine._session is not None
    options = engine._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert engine._session.get_providers() == ["CPUExecutionProvider"]


def test_threads_are_never_left_to_the_runtime(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="threads is 0; give 1 or more"):
        OrtEngine(tiny_package(tmp_path), threads=0)


def test_closed_engine_opens_no_session(tmp_path: Path) -> None:
    engine = OrtEngine(tiny_package(tmp_path))
    engine.close()
    with pytest.raises(LoadError, match="closed"):
        engine.open_session()
