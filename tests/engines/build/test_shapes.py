"""Buckets, and models whose sequences may be cut short."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from engines.build import graph, shapes
from engines.build.calibration import Rowset
from engines.errors import LoadError
from engines.plans import Profile
from schemas.spec import ModelSpec, builtin
from tests.engines.build import graphs
from tests.models import random_batch, tiny_package

SPEC = ModelSpec.parse(
    b"""
event = "custom"
features = [
    { name = "dense", shape = [3] },
    { name = "hist", shape = [6], pad = true, ids = 50 },
    { name = "brands", shape = [4], pad = true, ids = 50 },
    { name = "item", ids = 50 },
]
""",
    "spec",
)


def test_a_bucket_is_one_profile_with_every_input() -> None:
    assert shapes.profiles(SPEC, [8, 1, 8]) == [
        Profile(batch=batch, shapes={"dense": [batch, 3], "hist": [batch, 6], "brands": [batch, 4], "item": [batch, 1]})
        for batch in (1, 8)
    ]


@pytest.mark.parametrize(
    ("spec", "batches"),
    [(builtin("tipping"), (1, 8, 32, 256)), (builtin("ad"), (32, 256, 1024)), (SPEC, (32, 256, 1024))],
    ids=["tipping", "ad", "custom"],
)
def test_the_usual_buckets_are_those_of_the_kind_of_event(spec: ModelSpec, batches: tuple[int, ...]) -> None:
    assert shapes.usual_batches(spec) == batches


def test_shorter_lengths_cut_every_sequence_and_the_full_one_is_always_there() -> None:
    found = shapes.profiles(SPEC, [2], [5, 3, 99])
    assert [(p.sequence, p.shapes["hist"], p.shapes["brands"]) for p in found] == [
        (3, [2, 3], [2, 3]),
        (5, [2, 5], [2, 4]),
        (6, [2, 6], [2, 4]),
    ]


@pytest.mark.parametrize(("batches", "lengths"), [([], []), ([0], []), ([1], [0])])
def test_sizes_below_one_are_refused(batches: list[int], lengths: list[int]) -> None:
    with pytest.raises(LoadError, match="sizes of at least 1"):
        shapes.profiles(SPEC, batches, lengths)


def test_lengths_need_a_padded_sequence() -> None:
    spec = ModelSpec.parse(b'event = "custom"\nfeatures = [{ name = "hist", shape = [6], ids = 50 }]', "spec")
    with pytest.raises(LoadError, match="no tensor of the spec is one padded sequence"):
        shapes.profiles(spec, [1], [3])


def test_a_din_scores_alike_when_its_padding_is_cut(tmp_path: Path) -> None:
    package = tiny_package(tmp_path, "ad", "din")
    full = shapes.sequences(package.spec)
    model = shapes.freed(graph.prepared(onnx.load(package.file("model.onnx"))), full)
    rows = Rowset(random_batch(package.spec, 200))
    for length in (1, 8, 49):
        shapes.check_trimming(model, full, length, rows)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.run(None, {**random_batch(package.spec, 3), "hist": np.ones((3, 7), np.int32)})[0].shape == (3,)


def test_a_model_that_does_not_mask_its_padding_is_refused() -> None:
    model = shapes.freed(graph.prepared(graphs.attention()), {"hist": 6})
    rows = dict(graphs.attention_rows(50))
    rows["hist"] = rows["hist"] * (np.arange(6) < 4)
    with pytest.raises(LoadError, match="mask the padding"):
        shapes.check_trimming(model, {"hist": 6}, 4, Rowset(rows))


def test_a_model_with_the_length_baked_in_is_refused() -> None:
    s = graphs.Sketch()
    s.op("Cast", ["hist"], "h", to=1)
    s.op("MatMul", ["h", s.weight("w", 6, 1)], "score")
    hist = onnx.helper.make_tensor_value_info("hist", onnx.TensorProto.INT32, ["n", 6])
    model = graph.prepared(s.model([hist], "score", ["n", 1]))
    freed = shapes.freed(model, {"hist": 6})
    rows = Rowset({"hist": np.eye(6, dtype=np.int32)})
    with pytest.raises(LoadError, match="does not run on sequences of 4"):
        shapes.check_trimming(freed, {"hist": 6}, 4, rows)


def test_no_row_short_enough_is_nothing_to_check() -> None:
    model = shapes.freed(graph.prepared(graphs.attention()), {"hist": 6})
    rows = {"hist": np.ones((5, 6), np.int32), "item": np.ones((5, 1), np.int32)}
    shapes.check_trimming(model, {"hist": 6}, 4, Rowset(rows))
