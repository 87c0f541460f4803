"""A net with its parameters as ONNX (the graph that TensorRT builds from) and, for lr, as the light model's arrays.

The graph keeps to operators that TensorRT and ONNX Runtime both run, takes the spec's tensors as they are, standardises
in float32, masks attention with -1e4 (which float16 can hold) and clears what an empty history would have given.
"""

import io

import numpy as np
from numpy.typing import NDArray

from engines.train.graph import Graph
from engines.train.layout import Ids, Layout, Numbers, Pair, Sequence
from engines.train.params import Z_LIMIT, Net, Params

MASK = -1e4


def to_onnx(net: Net, params: Params) -> bytes:
    """The net as a serialised ONNX model: inputs are the layout's tensors, output `score` is float32 [n]."""
    graph = Graph(net.kind)
    declare_inputs(graph, net.layout)
    joined = [standardised(graph, numbers, params) for numbers in net.layout.numbers]
    if net.kind == "lr":
        return graph.finish(_linear(graph, net, params, joined))
    joined += [_embedded(graph, ids, params) for ids in net.layout.ids]
    if net.kind == "din":
        joined += [_attended(graph, net, params)]
    else:
        joined += [_pooled(graph, sequence, params) for sequence in net.layout.sequences]
    value = graph.add("Concat", joined, "joined", axis=1)
    for index in range(len(net.hidden)):
        value = graph.add("Relu", [_dense(graph, value, f"hidden.{index}", params)], f"hidden.{index}.relu")
    return graph.finish(_dense(graph, value, "head", params))


def to_light(net: Net, params: Params) -> bytes:
    """An lr net as `light.npz`, in the format of `engines.light`."""
    if net.kind != "lr":
        raise ValueError(f"the light model is an lr net, not {net.kind}")
    arrays: dict[str, NDArray[np.generic]] = {}
    bias = params["head.bias"].astype(np.float64)[0]
    column = 0
    for numbers in net.layout.numbers:
        mean, scale = (params[f"{numbers.name}.{part}"].astype(np.float64) for part in ("mean", "scale"))
        weight = params["head.weight"][column : column + numbers.columns, 0] * scale
        column += numbers.columns
        bias -= float(mean @ weight)
        for part, array in (("low", mean - Z_LIMIT / scale), ("high", mean + Z_LIMIT / scale), ("weight", weight)):
            arrays[f"{numbers.name}.{part}"] = array.astype(np.float32).reshape(numbers.shape)
    for ids in net.layout.ids:
        arrays[f"{ids.name}.table"] = params[f"{ids.name}.table"][:, 0]
        arrays[f"{ids.name}.offset"] = ids.offset.reshape(ids.shape)
        arrays[f"{ids.name}.pool"] = np.array(False)
    for sequence in net.layout.sequences:
        table = params[f"{sequence.name}.table"][:, 0].copy()
        table[0] = 0.0
        arrays[f"{sequence.name}.table"] = table
        arrays[f"{sequence.name}.offset"] = np.zeros(sequence.length, np.int64)
        arrays[f"{sequence.name}.pool"] = np.array(True)
    arrays["bias"] = np.array(bias, np.float32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def declare_inputs(graph: Graph, layout: Layout) -> None:
    for numbers in layout.numbers:
        graph.input(numbers.name, "float32", numbers.shape)
    for ids in layout.ids:
        graph.input(ids.name, ids.dtype, ids.shape)
    for sequence in layout.sequences:
        graph.input(sequence.name, sequence.dtype, (sequence.length,))


def standardised(graph: Graph, numbers: Numbers, params: Params) -> str:
    """[n, columns]: sign(x) * log(1 + |x|), less its mean, by its deviation, within the limit."""
    t = numbers.name
    one = graph.number("one", 1.0)
    value = flat(graph, t, numbers.shape)
    size = graph.add("Log", [graph.add("Add", [graph.add("Abs", [value], f"{t}.abs"), one], f"{t}.shift")], f"{t}.log")
    value = graph.add("Mul", [graph.add("Sign", [value], f"{t}.sign"), size], f"{t}.squash")
    value = graph.add("Sub", [value, graph.constant(f"{t}.mean", params[f"{t}.mean"])], f"{t}.centre")
    value = graph.add("Mul", [value, graph.constant(f"{t}.scale", params[f"{t}.scale"])], f"{t}.standard")
    limits = [graph.number(f"z_{n}", z) for n, z in (("low", -Z_LIMIT), ("high", Z_LIMIT))]
    return graph.add("Clip", [value, *limits], f"{t}.clip")


def flat(graph: Graph, name: str, row: tuple[int, ...]) -> str:
    """[n, columns] of a tensor of any rank."""
    return name if len(row) == 1 else graph.add("Flatten", [name], f"{name}.flat", axis=1)


def gathered(graph: Graph, ids: Ids, table: NDArray[np.float32]) -> str:
    """[n, columns, *entry]: each column's entry of its own range of the table."""
    offset = graph.constant(f"{ids.name}.offset", ids.offset.astype(ids.dtype))
    index = graph.add("Add", [flat(graph, ids.name, ids.shape), offset], f"{ids.name}.index")
    return graph.add("Gather", [graph.constant(f"{ids.name}.table", table), index], f"{ids.name}.entry", axis=0)


def _linear(graph: Graph, net: Net, params: Params, numbers: list[str]) -> str:
    """[n, 1] logit of lr: numbers by the head, ids by their own weights."""
    terms = []
    for ids in net.layout.ids:
        entry = gathered(graph, ids, params[f"{ids.name}.table"][:, 0])
        terms.append(graph.add("ReduceSum", [entry, graph.axes(1)], f"{ids.name}.sum", keepdims=1))
    terms += [_pooled(graph, sequence, params) for sequence in net.layout.sequences]
    if numbers:
        terms.append(_dense(graph, graph.add("Concat", numbers, "joined", axis=1), "head", params))
    else:
        terms.append(graph.constant("head.bias", params["head.bias"].reshape(1, 1)))
    logit, *others = terms
    for index, term in enumerate(others):
        logit = graph.add("Add", [logit, term], f"logit.{index}")
    return logit


def _dense(graph: Graph, value: str, name: str, params: Params) -> str:
    weight, bias = (graph.constant(f"{name}.{part}", params[f"{name}.{part}"]) for part in ("weight", "bias"))
    return graph.add("Gemm", [value, weight, bias], name)


def _embedded(graph: Graph, ids: Ids, params: Params) -> str:
    """[n, columns * embed]."""
    return graph.add("Flatten", [gathered(graph, ids, params[f"{ids.name}.table"])], f"{ids.name}.embedding", axis=1)


def _mask(graph: Graph, sequence: Sequence) -> str:
    """[n, length] float32: 1 where there is an id, 0 where there is padding."""
    ids = graph.add("Cast", [sequence.name], f"{sequence.name}.float", to=1)
    limits = [graph.number(name, value) for name, value in (("zero", 0.0), ("one", 1.0))]
    return graph.add("Clip", [ids, *limits], f"{sequence.name}.mask")


def _steps(graph: Graph, sequence: Sequence, params: Params) -> str:
    """[n, length, embed]."""
    table = graph.constant(f"{sequence.name}.table", params[f"{sequence.name}.table"])
    return graph.add("Gather", [table, sequence.name], f"{sequence.name}.steps", axis=0)


def _pooled(graph: Graph, sequence: Sequence, params: Params) -> str:
    """[n, embed]: the mean over the ids that are there, 0 when there are none."""
    s = sequence.name
    mask = _mask(graph, sequence)
    steps = _steps(graph, sequence, params)
    kept = graph.add("Mul", [steps, graph.add("Unsqueeze", [mask, graph.axes(2)], f"{s}.mask3")], f"{s}.kept")
    total = graph.add("ReduceSum", [kept, graph.axes(1)], f"{s}.total", keepdims=0)
    count = graph.add("ReduceSum", [mask, graph.axes(1)], f"{s}.count", keepdims=1)
    divisor = graph.add("Max", [count, graph.number("one", 1.0)], f"{s}.divisor")
    return graph.add("Div", [total, divisor], f"{s}.mean")


def _query(graph: Graph, net: Net, pair: Pair, params: Params) -> str:
    """[n, embed] of the column that a sequence is asked about."""
    [ids] = [ids for ids in net.layout.ids if ids.name == pair.tensor]
    column = graph.constant(f"{pair.sequence}.column", np.array([pair.column], np.int64))
    target = flat(graph, pair.tensor, ids.shape) if len(ids.shape) == 1 else f"{pair.tensor}.flat"
    index = graph.add("Gather", [target, column], f"{pair.sequence}.target", axis=1)
    table = f"{pair.sequence}.table"
    if not pair.shared:
        table = f"{pair.tensor}.table"
        start = np.array([ids.offset[pair.column]], ids.dtype)
        index = graph.add("Add", [index, graph.constant(f"{pair.sequence}.start", start)], f"{pair.sequence}.place")
    entry = graph.add("Gather", [graph.constant(table, params[table]), index], f"{pair.sequence}.asked", axis=0)
    return graph.add("Flatten", [entry], f"{pair.sequence}.query", axis=1)


def _attended(graph: Graph, net: Net, params: Params) -> str:
    """[n, (sequences + pairs) * embed]: steps weighted by a softmax of their score against the target, and the product
    of the result with the target."""
    layout = net.layout
    steps = {sequence.name: _steps(graph, sequence, params) for sequence in layout.sequences}
    keys = list(steps.values())
    key = graph.add("Concat", keys, "attention.steps", axis=2)
    queries = [_query(graph, net, pair, params) for pair in layout.pairs]
    query = graph.add("Concat", queries, "attention.query", axis=1)
    query3 = graph.add("Unsqueeze", [query, graph.axes(1)], "attention.query3")
    asked = graph.add("Concat", [steps[pair.sequence] for pair in layout.pairs], "attention.asked", axis=2)
    product = graph.add("Mul", [asked, query3], "attention.product")
    both = graph.add("Concat", [key, product], "attention.both", axis=2)
    by_key = graph.add(
        "MatMul", [both, graph.constant("attention.key.weight", params["attention.key.weight"])], "attention.by_key"
    )
    weights = [graph.constant(f"attention.{part}", params[f"attention.{part}"]) for part in ("query.weight", "bias")]
    by_query = graph.add(
        "Unsqueeze", [graph.add("Gemm", [query, *weights], "attention.by_query2"), graph.axes(1)], "attention.by_query"
    )
    hidden = graph.add("Relu", [graph.add("Add", [by_key, by_query], "attention.sum")], "attention.relu")
    head = graph.constant("attention.head.weight", params["attention.head.weight"])
    score = graph.add(
        "Squeeze", [graph.add("MatMul", [hidden, head], "attention.head"), graph.axes(2)], "attention.score"
    )
    mask = _mask(graph, layout.sequences[0])
    absent = graph.add("Sub", [graph.number("one", 1.0), mask], "attention.absent")
    penalty = graph.add("Mul", [absent, graph.number("attention.mask", MASK)], "attention.penalty")
    weight = graph.add("Softmax", [graph.add("Add", [score, penalty], "attention.masked")], "attention.weight", axis=1)
    weight3 = graph.add("Unsqueeze", [weight, graph.axes(1)], "attention.weight3")
    pooled = graph.add(
        "Squeeze", [graph.add("MatMul", [weight3, key], "attention.pool"), graph.axes(1)], "attention.mean"
    )
    has_history = graph.add("ReduceMax", [mask], "attention.has_history", axes=[1], keepdims=1)
    pooled = graph.add("Mul", [pooled, has_history], "attention.pooled")
    columns = graph.constant("attention.columns", layout.compared(net.embed))
    found = graph.add("Gather", [pooled, columns], "attention.found", axis=1)
    return graph.add("Concat", [pooled, graph.add("Mul", [found, query], "attention.match")], "attention.out", axis=1)
