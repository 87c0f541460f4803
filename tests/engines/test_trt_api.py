"""Every TensorRT name that the engines use exists, and takes what it is given, in 10.6, 10.15 and 11.4."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import engines
from tests.engines import trt_bindings
from tests.engines.trt_bindings import Api, Parameter

ROOT = Path(engines.__file__).parent
MODULE_NAMES = {"trt", "_trt"}
"""How the engines call the TensorRT module."""

METHODS = {
    "IBuilderConfig.add_optimization_profile": "profile",
    "Builder.build_serialized_network": "network, config",
    "IBuilderConfig.clear_flag": "flag",
    "Builder.create_builder_config": "",
    "ICudaEngine.create_engine_inspector": "",
    "ICudaEngine.create_execution_context": "strategy",
    "Builder.create_network": "flags",
    "Builder.create_optimization_profile": "",
    "IBuilderConfig.create_timing_cache": "serialized_timing_cache",
    "ParserError.desc": "",
    "Runtime.deserialize_cuda_engine": "serialized_engine",
    "IExecutionContext.execute_async_v3": "stream_handle",
    "ICudaEngine.get_device_memory_size_for_profile_v2": "profile_index",
    "EngineInspector.get_engine_information": "format",
    "OnnxParser.get_error": "index",
    "INetworkDefinition.get_output": "index",
    "ICudaEngine.get_tensor_dtype": "name",
    "ICudaEngine.get_tensor_location": "name",
    "ICudaEngine.get_tensor_mode": "name",
    "ICudaEngine.get_tensor_name": "index",
    "IExecutionContext.get_tensor_shape": "name",
    "IExecutionContext.infer_shapes": "",
    "ILogger.log": "severity, msg",
    "OnnxParser.parse": "model, path",
    "ITimingCache.serialize": "",
    "IExecutionContext.set_device_memory": "memory, size",
    "IBuilderConfig.set_flag": "flag",
    "IExecutionContext.set_input_shape": "name, shape",
    "IBuilderConfig.set_memory_pool_limit": "pool, pool_size",
    "IExecutionContext.set_optimization_profile_async": "profile_index, stream_handle",
    "IOptimizationProfile.set_shape": "input, min, opt, max",
    "IExecutionContext.set_tensor_address": "name, memory",
    "IBuilderConfig.set_timing_cache": "cache, ignore_mismatch",
}
"""Method -> its parameters, by hand: a call that is not listed here fails, and so does a listed one that differs."""

PROPERTIES = {
    "IBuilderConfig.builder_optimization_level": "set",
    "INetworkDefinition.name": "set",
    "OnnxParser.num_errors": "read",
    "ICudaEngine.num_io_tensors": "read",
    "IBuilderConfig.profiling_verbosity": "set",
}

CONSTRUCTORS = {"Builder": "logger", "Runtime": "logger", "OnnxParser": "network, logger", "ILogger": ""}

ELSEWHERE = {
    "append", "clear", "count", "dtype", "engine", "extend", "file", "name", "nbytes", "node", "pop", "precision",
    "query", "read", "shape", "write",
}  # fmt: skip
"""Members of some TensorRT class that the engines use on objects of their own, of numpy and of Python."""


@pytest.fixture(scope="module", params=[*trt_bindings.WHEELS])
def api(request: pytest.FixtureRequest) -> Api:
    return trt_bindings.api(request.param)


@cache
def users() -> dict[str, ast.Module]:
    """The engine files that touch TensorRT: those that name the module, and those that are handed its objects."""
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
    return {
        name: tree
        for name, tree in trees.items()
        if name.startswith("trt") or any(_is_module(node) for node in ast.walk(tree))
    }


def attributes() -> Iterator[tuple[str, ast.Attribute]]:
    for file, tree in users().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                yield file, node


def chains() -> set[tuple[str, ...]]:
    """Names behind the module: trt.Builder -> ("Builder",), trt.BuilderFlag.TF32 -> ("BuilderFlag", "TF32")."""
    found = set()
    for _, node in attributes():
        if _is_module(node.value):
            found.add((node.attr,))
        elif isinstance(node.value, ast.Attribute) and _is_module(node.value.value):
            found.add((node.value.attr, node.attr))
    return found


def calls() -> Iterator[tuple[str, ast.Call, str]]:
    """(where, call, name of what is called) of every call of an attribute."""
    for file, tree in users().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield f"{file}:{node.lineno}", node, node.func.attr


def test_the_engines_do_use_tensorrt() -> None:
    assert {"build/compiler.py", "trt.py", "trt_module.py"} <= users().keys()
    assert {("Builder",), ("BuilderFlag", "TF32"), ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED")} <= chains()


def test_every_name_of_the_module_exists(api: Api) -> None:
    missing = [
        ".".join(chain)
        for chain in sorted(chains() - {("__version__",)})
        if chain[0] not in api.names or (len(chain) == 2 and not api.has(*chain))
    ]
    assert not missing, f"TensorRT {api.version} has no {', '.join(missing)}"


def test_every_member_that_is_used_is_in_the_tables(api: Api) -> None:
    known = {entry.split(".")[1] for entry in (*METHODS, *PROPERTIES)} | {chain[-1] for chain in chains()} | ELSEWHERE
    members = set().union(*(set(members) for members in api.classes.values()))
    unknown = {f"{file}:{node.lineno} .{node.attr}" for file, node in attributes() if node.attr in members - known}
    assert not unknown, "add these to the tables with the signature that all versions have, or to ELSEWHERE"


def test_every_member_in_the_tables_is_used() -> None:
    used = {node.attr for _, node in attributes()} | {"log"}
    unused = {entry for entry in (*METHODS, *PROPERTIES) if entry.split(".")[1] not in used}
    assert not unused, "remove these from the tables"


@pytest.mark.parametrize("entry", METHODS)
def test_a_method_takes_the_parameters_it_is_called_with(api: Api, entry: str) -> None:
    cls, method = entry.split(".")
    assert api.has(cls, method), f"TensorRT {api.version} has no {entry}"
    wanted = [name.strip() for name in METHODS[entry].split(",") if name.strip()]
    signatures = api.signatures(cls, method)
    assert any(_fits(signature, wanted) for signature in signatures), f"TensorRT {api.version}: {entry}{signatures}"


@pytest.mark.parametrize("entry", PROPERTIES)
def test_a_property_can_be_read_and_where_needed_set(api: Api, entry: str) -> None:
    cls, name = entry.split(".")
    assert api.has(cls, name), f"TensorRT {api.version} has no {entry}"
    if PROPERTIES[entry] == "set":
        assert api.settable(cls, name)


def test_what_is_assigned_is_a_settable_property_of_the_table() -> None:
    settable = {entry.split(".")[1] for entry, use in PROPERTIES.items() if use == "set"}
    known = {entry.split(".")[1] for entry in PROPERTIES} - {"name"}
    assigned = {node.attr for _, node in attributes() if isinstance(node.ctx, ast.Store)}
    assert assigned & known <= settable


@pytest.mark.parametrize("cls", CONSTRUCTORS)
def test_a_class_is_made_from_what_it_is_given(api: Api, cls: str) -> None:
    wanted = [name.strip() for name in CONSTRUCTORS[cls].split(",") if name.strip()]
    assert any(_fits(signature, wanted) for signature in api.signatures(cls, "__init__"))


def test_every_call_passes_as_many_arguments_as_the_method_takes(api: Api) -> None:
    owner = {entry.split(".")[1]: entry.split(".")[0] for entry in METHODS}
    checked = 0
    for where, call, name in calls():
        constructed = isinstance(call.func, ast.Attribute) and _is_module(call.func.value)
        if constructed and name in CONSTRUCTORS:
            signatures = api.signatures(name, "__init__")
        elif name in owner and name not in ELSEWHERE and name != "log":
            signatures = api.signatures(owner[name], name)
        else:
            continue
        checked += 1
        assert any(_accepts(signature, call) for signature in signatures), f"{where}: {name} in {api.version}"
    assert checked >= len(CONSTRUCTORS)


def test_a_name_of_only_some_versions_is_told_apart(api: Api) -> None:
    """What the other tests rely on: the description shows what came and went."""
    assert api.has("BuilderFlag", "FP16") == api.version.startswith("10.")
    assert api.has("ICudaEngine", "create_runtime_config") == (api.version != "10.6.0")
    kernel_text = {parameter.name for s in api.signatures("Builder", "build_serialized_network") for parameter in s}
    assert ("kernel_text" in kernel_text) == (api.version != "10.6.0")


def _is_module(node: ast.AST) -> bool:
    """`trt`, or `something.trt`."""
    return (isinstance(node, ast.Name) and node.id in MODULE_NAMES) or (
        isinstance(node, ast.Attribute) and node.attr in MODULE_NAMES
    )


def _fits(signature: list[Parameter], wanted: list[str]) -> bool:
    """The signature begins with the wanted parameters and needs no others."""
    names = [parameter.name for parameter in signature]
    return names[: len(wanted)] == wanted and not any(parameter.required for parameter in signature[len(wanted) :])


def _accepts(signature: list[Parameter], call: ast.Call) -> bool:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    given = len(call.args)
    keywords = {keyword.arg for keyword in call.keywords}
    rest = signature[given:]
    return (
        given <= len(signature)
        and keywords <= {parameter.name for parameter in rest}
        and all(parameter.name in keywords for parameter in rest if parameter.required)
    )
