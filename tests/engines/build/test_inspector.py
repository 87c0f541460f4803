"""Layer precisions out of the inspector's JSON, in the layouts of TensorRT 10 and 11, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engines.build import inspector
from engines.errors import LoadError


def tensor(dtype: str, schema: int) -> dict[str, Any]:
    """One tensor as TensorRT 10 or 11 prints it."""
    base = {"Name": "t", "Location": "Device", "Dimensions": [32, 16]}
    if schema == 10:
        return {**base, "Format/Datatype": dtype}
    return {**base, "Format": "Row major linear", "DataType": dtype}


def layer(nodes: list[str], inputs: list[str], outputs: list[str], schema: int = 10, **extra: Any) -> dict[str, Any]:
    return {
        "Name": f"__myl_{'_'.join(nodes)}",
        "LayerType": "gemm",
        "Inputs": [tensor(dtype, schema) for dtype in inputs],
        "Outputs": [tensor(dtype, schema) for dtype in outputs],
        "TacticName": "sm90_xmma_gemm",
        "Metadata": "\x1f".join(f"[ONNX Layer: {node}]" for node in nodes),
        **extra,
    }


def text(*layers: dict[str, Any], schema: int = 10) -> str:
    ends = {"Bindings": ["x", "score"]} if schema == 10 else {"I/O Tensors": [{"Name": "x", "DataType": "Float"}]}
    return json.dumps({"Layers": [*layers], **ends})


@pytest.mark.parametrize("schema", [10, 11])
def test_both_layouts_give_the_same_layers(schema: int) -> None:
    found = inspector.parse(text(layer(["a", "b.Relu"], ["Half", "Float"], ["Int32"], schema), schema=schema))
    assert [(one.inputs, one.outputs, one.nodes) for one in found] == [
        (("fp16", "fp32"), ("int32",), frozenset({"a", "b.Relu"}))
    ]


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("Row major linear FP32", "fp32"),
        ("Row major linear FP16 format", "fp16"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
        ("Half", "fp16"),
        ("Float", "fp32"),
        ("BFloat16", "bf16"),
        ("Int64", "int64"),
        ("Bool", "bool"),
        ("N/A due to dynamic shapes", "?"),
        ("", "?"),
    ],
)
def test_every_spelling_of_a_type_is_understood(printed: str, meant: str) -> None:
    assert inspector.parse(text(layer(["a"], [printed], [])))[0].inputs == (meant,)


def test_metadata_with_properties_names_its_node() -> None:
    plain = layer([], ["Float"], ["Float"], Metadata="[ONNX Layer: /mlp/Gemm | f (local)]\x1f[ONNX Layer: relu]")
    assert inspector.parse(text(plain))[0].nodes == {"/mlp/Gemm", "relu"}


def test_names_without_details_are_refused() -> None:
    with pytest.raises(LoadError, match="layer names only"):
        inspector.parse(json.dumps({"Layers": ["gemm_1", "relu_2"], "Bindings": []}))


def test_layers_are_told_apart_by_profile() -> None:
    names = ["gemm", "relu", "gemm [profile 1]", "relu [profile 1]", "gemm [profile 2]"]
    found = inspector.parse(text(*(layer([], ["Float"], ["Float"], Name=name) for name in names)))
    assert [[one.name for one in group] for group in inspector.by_profile(found)] == [names[:2], names[2:4], names[4:]]


def test_layers_of_compiled_regions_are_told_apart_by_their_number() -> None:
    names = ["dummy_shape_call__mye1_myl0_0", "hidden_0_myl0_1", "__myl_Mul_myl1_0", "hidden_0 [profile 1]_myl1_2"]
    found = inspector.parse(text(*(layer([], ["Float"], ["Float"], Name=name) for name in names)))
    assert [[one.name for one in group] for group in inspector.by_profile(found)] == [names[:2], names[2:]]


REAL = json.loads((Path(__file__).parent / "inspected_10_6.json").read_text())
"""From TensorRT 10.6 on an H200, two profiles of the reference nets: names, types, tactics and metadata."""


@pytest.mark.parametrize(
    ("net", "precision", "counts"),
    [
        ("mlp-int8", "int8", [{"fp32": 1, "int8": 3}, {"fp32": 1, "int8": 3}]),
        ("din-fp16", "fp16", [{"fp16": 8, "fp16 accumulators": 2, "fp32": 3, "int32": 1}] * 2),
    ],
)
def test_a_real_engine_is_understood(net: str, precision: str, counts: list[dict[str, int]]) -> None:
    profiles = inspector.by_profile(inspector.parse(json.dumps(REAL[net]["engine"])))
    assert [inspector.count(layers) for layers in profiles] == counts
    for layers in profiles:
        shown = inspector.check(layers, precision, REAL[net]["gemms"], REAL[net]["float32"])  # type: ignore[arg-type]
        assert shown == dict.fromkeys(REAL[net]["gemms"], "shown")


@pytest.mark.parametrize(("net", "precision", "asked"), [("mlp-int8", "int8", "Int8"), ("din-fp16", "fp16", "Half")])
def test_the_same_engine_in_float32_would_be_refused(net: str, precision: str, asked: str) -> None:
    plain = json.dumps(REAL[net]["engine"]).replace(f'"{asked}"', '"Float"')
    for layers in inspector.by_profile(inspector.parse(plain)):
        with pytest.raises(LoadError, match=f"asked for {precision}, but the engine does not show it for"):
            inspector.check(layers, precision, REAL[net]["gemms"], REAL[net]["float32"])  # type: ignore[arg-type]
        assert inspector.check(layers, "fp32", [], {}) == {}


def check(precision: str, *layers: dict[str, Any]) -> dict[str, str]:
    return inspector.check(inspector.parse(text(*layers)), precision, ["a", "b"], {"head": "head"})  # type: ignore[arg-type]


HEAD = layer(["head"], ["Float"], ["Float"])


def test_float16_where_it_was_asked_for_is_shown() -> None:
    shown = check("fp16", layer(["a"], ["Half"], ["Half"]), layer(["b"], ["Half"], ["Half"]), HEAD)
    assert shown == {"a": "shown", "b": "shown"}


def test_a_gemm_inside_a_larger_kernel_is_fused_and_not_held_against_it() -> None:
    fused = layer(["x__fp16__cast", "b", "b__cast", "head"], ["Float"], ["Float"])
    assert check("fp16", layer(["a"], ["Half"], ["Half"]), fused) == {"a": "shown", "b": "fused"}
    fused = layer(["b__0__q", "b__0__dq", "b__1__dq", "b"], ["Float"], ["Float"])
    assert check("int8", layer(["a"], ["Int8"], ["Float"]), fused) == {"a": "shown", "b": "fused"}


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_gemm_that_silently_stayed_float32_is_named(precision: str) -> None:
    asked = {"fp16": "Half", "int8": "Int8"}[precision]
    with pytest.raises(LoadError, match=f"asked for {precision}, but the engine does not show it for b"):
        check(precision, layer(["a"], [asked], ["Float"]), layer(["b"], ["Float"], ["Float"]), HEAD)


def test_an_engine_that_shows_the_precision_nowhere_is_refused() -> None:
    with pytest.raises(LoadError, match="does not show it for every one of its GEMMs"):
        check("fp16", layer(["x__fp16__cast", "a", "b", "b__cast", "head"], ["Float"], ["Float"]))


def test_a_head_that_is_not_float32_is_refused() -> None:
    layers = (layer(["a"], ["Half"], ["Half"]), layer(["b"], ["Half"], ["Half"]))
    with pytest.raises(LoadError, match="head must stay float32, but layer __myl_head uses fp16"):
        check("fp16", *layers, layer(["head"], ["Half"], ["Half"]))


@pytest.mark.parametrize(
    ("net", "name", "asked", "gemm"),
    [
        ("mlp-int8", "hidden_0_myl0_2", "Int8", "hidden.0"),
        ("mlp-int8", "hidden_1 [profile 1]_myl1_3", "Int8", "hidden.1"),
        ("din-fp16", "__myl_FcCas_myl0_2", "Half", "attention.by_key"),
        ("din-fp16", "hidden_0_myl0_9", "Half", "hidden.0"),
    ],
)
def test_one_gemm_of_a_real_engine_in_float32_would_be_named(net: str, name: str, asked: str, gemm: str) -> None:
    """Also one whose kernel holds the border behind it, or its own dequantisation."""
    layers = [
        json.loads(json.dumps(one).replace(f'"{asked}"', '"Float"')) if one["Name"] == name else one
        for one in REAL[net]["engine"]["Layers"]
    ]
    assert layers != REAL[net]["engine"]["Layers"]
    with pytest.raises(LoadError, match=f"does not show it for {re.escape(gemm)}; its layers"):
        for found in inspector.by_profile(inspector.parse(text(*layers))):
            inspector.check(found, net.partition("-")[2], REAL[net]["gemms"], REAL[net]["float32"])  # type: ignore[arg-type]


def test_the_head_of_a_real_engine_would_be_found_in_int8_too() -> None:
    """Its kernel is that of the sigmoid as well."""
    layers = REAL["mlp-int8"]["engine"]["Layers"]
    [at] = [i for i, one in enumerate(layers) if one["Name"] == "__myl_MulSumAddNegExpAddDiv_myl0_4"]
    changed = [*layers[:at], json.loads(json.dumps(layers[at]).replace('"Float"', '"Int8"')), *layers[at + 1 :]]
    with pytest.raises(LoadError, match=r"head must stay float32, but layer __myl_MulSum.* uses int8"):
        inspector.check(inspector.parse(text(*changed)), "int8", REAL["mlp-int8"]["gemms"], REAL["mlp-int8"]["float32"])


def test_int8_may_show_in_the_weights_alone() -> None:
    weights = layer(["a"], ["Float"], ["Float"], Weights={"Type": "Int8", "Count": 4})
    assert check("int8", weights, layer(["b"], ["Int8"], ["Float"]))["a"] == "shown"


@pytest.mark.parametrize(
    ("precision", "lower", "tactic", "passes"),
    [
        ("fp32", "Float", "sm80_f32f32_f32f32", True),
        ("fp32", "Half", "sm80_f32f32_f32f32", False),
        ("fp32", "Int8", "sm80_f32f32_f32f32", False),
        ("fp32", "Float", "sm80_tensorop_s1688gemm_tf32f32", False),
        ("tf32", "Float", "sm80_tensorop_s1688gemm_tf32f32", True),
        ("tf32", "Half", "sm80_tensorop_s1688gemm_tf32f32", False),
    ],
)
def test_float32_means_float32_everywhere(precision: str, lower: str, tactic: str, passes: bool) -> None:
    layers = (layer(["a"], [lower], ["Float"], TacticName=tactic), HEAD)
    if passes:
        assert check(precision, *layers) == {}
    else:
        with pytest.raises(LoadError, match=f"asked for {precision}, but layer __myl_a uses"):
            check(precision, *layers)


def test_layers_are_counted_by_their_narrowest_type() -> None:
    layers = [layer(["a"], ["Int8", "Float"], ["Float"]), layer(["b"], ["Half"], ["Float"]), HEAD]
    layers.append(layer(["c"], ["Float"], ["Float"], TacticName="x_tf32_y"))
    assert inspector.count(inspector.parse(text(*layers))) == {"fp16": 1, "fp32": 2, "int8": 1, "tf32": 1}
