"""Boosted trees whose leaves feed a logistic regression (He et al., "Practical Lessons from Predicting Clicks on Ads at
Facebook", 2014), exported as one ONNX tree ensemble: a leaf's value is its regression weight.

Trees split numbers only, so ids are given to them as numbers too: each id as the log-odds of its label rate, smoothed
towards the base rate; each history as its length, and as how often the target stands in it.
"""

from dataclasses import dataclass
from typing import Any, Final

import lightgbm
import numpy as np
from numpy.typing import NDArray

from engines.train.export import declare_inputs, flat, gathered
from engines.train.fit import Labels, fit
from engines.train.graph import Graph
from engines.train.layout import Ids, Layout
from engines.train.params import Net
from schemas.rows import Tensors

Floats = NDArray[np.float32]
LEAF: Final = "leaf"
_FOLDS: Final = 5
_SMOOTHING: Final = 20.0
"""Rows of base rate that an id's own rate is mixed with."""


@dataclass(frozen=True, slots=True)
class Trees:
    """A fitted model. `weights[t][leaf]` is the regression's weight of a leaf of tree t."""

    layout: Layout
    rates: dict[str, Floats]
    booster: lightgbm.Booster
    weights: tuple[Floats, ...]
    bias: float

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(weight) for weight in self.weights)


def fit_trees(layout: Layout, tensors: Tensors, labels: Labels, *, trees: int, leaves: int, seed: int) -> Trees:
    """`trees` boosted trees of up to `leaves` leaves, and the regression over their leaves.

    The rates that a training row sees are those of the other folds; with its own label in them the trees would learn
    to read the label.
    """
    rng = np.random.default_rng(seed)
    fold = rng.permutation(len(labels)) % _FOLDS
    rates = {ids.name: _rates(ids, tensors, labels, np.ones(len(labels), bool)) for ids in layout.ids}
    held_out = [{ids.name: _rates(ids, tensors, labels, fold != k) for ids in layout.ids} for k in range(_FOLDS)]
    columns = np.empty_like(tree_columns(layout, rates, tensors))
    for k in range(_FOLDS):
        part = {name: tensor[fold == k] for name, tensor in tensors.items()}
        columns[fold == k] = tree_columns(layout, held_out[k], part)
    options = {
        "objective": "binary",
        "num_leaves": leaves,
        "learning_rate": 0.1,
        "min_data_in_leaf": max(5, min(50, len(labels) // 50)),
        "use_missing": False,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "seed": seed,
        "verbosity": -1,
    }
    booster = lightgbm.train(options, lightgbm.Dataset(columns, labels), num_boost_round=trees)
    leaf = _leaves(booster, columns)
    sizes = tuple(_leaf_count(tree) for tree in booster.dump_model()["tree_info"])
    net = Net("lr", Layout((), (Ids(LEAF, "int32", (len(sizes),), sizes),), ()))
    epochs = 20 if len(labels) < 2000 else 5
    params = fit(net, {LEAF: leaf}, labels, epochs=epochs, seed=seed)
    table = params[f"{LEAF}.table"][:, 0]
    weights = tuple(np.split(table, np.cumsum(sizes)[:-1]))
    return Trees(layout, rates, booster, weights, float(params["head.bias"][0]))


def tree_columns(layout: Layout, rates: dict[str, Floats], tensors: Tensors) -> Floats:
    """[n, columns] what the trees split on: numbers, log-odds of ids, history lengths, targets in the history."""
    parts: list[NDArray[Any]] = [tensors[part.name].reshape(-1, part.columns) for part in layout.numbers]
    parts += [rates[ids.name][ids.places(tensors[ids.name])] for ids in layout.ids]
    parts += [np.count_nonzero(tensors[part.name], axis=1)[:, None] for part in layout.sequences]
    for pair in layout.pairs:
        if pair.shared:
            target = tensors[pair.tensor].reshape(len(tensors[pair.tensor]), -1)[:, pair.column : pair.column + 1]
            parts.append((tensors[pair.sequence] == target).sum(1, keepdims=True))
    return np.concatenate(parts, axis=1).astype(np.float32)


def predict_trees(model: Trees, tensors: Tensors) -> NDArray[np.float64]:
    """[n] probabilities by LightGBM's own leaves and the regression, in double precision."""
    leaf = _leaves(model.booster, tree_columns(model.layout, model.rates, tensors))
    logit = np.full(len(leaf), model.bias)
    for tree, weight in enumerate(model.weights):
        logit += weight.astype(np.float64)[leaf[:, tree]]
    result: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-logit))
    return result


def trees_to_onnx(model: Trees) -> bytes:
    """The model as serialised ONNX with the layout's tensors as inputs and `score` float32 [n]."""
    graph = Graph("trees")
    layout = model.layout
    declare_inputs(graph, layout)
    parts = [flat(graph, part.name, part.shape) for part in layout.numbers]
    parts += [gathered(graph, ids, model.rates[ids.name]) for ids in layout.ids]
    for sequence in layout.sequences:
        ids = graph.add("Cast", [sequence.name], f"{sequence.name}.float", to=1)
        present = graph.add("Clip", [ids, graph.number("zero", 0.0), graph.number("one", 1.0)], f"{sequence.name}.mask")
        parts.append(graph.add("ReduceSum", [present, graph.axes(1)], f"{sequence.name}.length", keepdims=1))
    for pair in layout.pairs:
        if pair.shared:
            [shape] = [ids.shape for ids in layout.ids if ids.name == pair.tensor]
            target = pair.tensor if len(shape) == 1 else f"{pair.tensor}.flat"
            column = graph.constant(f"{pair.sequence}.column", np.array([pair.column], np.int64))
            asked = graph.add("Gather", [target, column], f"{pair.sequence}.target", axis=1)
            same = graph.add("Equal", [pair.sequence, asked], f"{pair.sequence}.same")
            number = graph.add("Cast", [same], f"{pair.sequence}.same_float", to=1)
            parts.append(graph.add("ReduceSum", [number, graph.axes(1)], f"{pair.sequence}.matches", keepdims=1))
    joined = graph.add("Concat", parts, "columns", axis=1)
    attributes = _ensemble(model.booster.dump_model()["tree_info"], model.weights)
    logit = graph.add_ml("TreeEnsembleRegressor", [joined], "trees", base_values=[model.bias], **attributes)
    return graph.finish(logit)


def _ensemble(trees: list[dict[str, Any]], weights: tuple[Floats, ...]) -> dict[str, Any]:
    """Attributes of TreeEnsembleRegressor. Nodes of a tree are numbered in pre-order."""
    nodes: dict[str, list[Any]] = {
        key: [] for key in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    }
    targets: dict[str, list[Any]] = {key: [] for key in ("treeids", "nodeids", "ids", "weights")}

    def put(tree: int, node: dict[str, Any], number: int) -> int:
        """Write a subtree whose root has this number; the next free number."""
        at = len(nodes["nodeids"])
        split = "split_index" in node
        row = (tree, number, node.get("split_feature", 0), 0.0, "BRANCH_LEQ" if split else "LEAF", 0, 0)
        for values, value in zip(nodes.values(), row, strict=True):
            values.append(value)
        if not split:
            leaf = weights[tree][node.get("leaf_index", 0)]
            for values, value in zip(targets.values(), (tree, number, 0, float(leaf)), strict=True):
                values.append(value)
            return number + 1
        if node["decision_type"] != "<=":
            raise ValueError(f"split {node['decision_type']!r} in tree {tree}; only <= is exported")
        nodes["values"][at] = _not_above(node["threshold"])
        nodes["truenodeids"][at] = number + 1
        nodes["falsenodeids"][at] = right = put(tree, node["left_child"], number + 1)
        return put(tree, node["right_child"], right)

    for tree, info in enumerate(trees):
        put(tree, info["tree_structure"], 0)
    return {
        "n_targets": 1,
        "post_transform": "NONE",
        **{f"nodes_{key}": values for key, values in nodes.items()},
        **{f"target_{key}": values for key, values in targets.items()},
    }


def _not_above(threshold: float) -> float:
    """The largest float32 that is not above: for a float32 x, x <= threshold exactly when x <= it."""
    with np.errstate(over="ignore"):
        rounded = np.float32(threshold)
    if float(rounded) > threshold:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)


def _leaf_count(tree: dict[str, Any]) -> int:
    return int(tree["num_leaves"])


def _leaves(booster: lightgbm.Booster, columns: Floats) -> NDArray[np.int32]:
    leaves = booster.predict(columns, pred_leaf=True, num_threads=1)
    return np.asarray(leaves, np.int32).reshape(len(columns), -1)


def _rates(ids: Ids, tensors: Tensors, labels: Labels, rows: NDArray[np.bool_]) -> Floats:
    """[total] log-odds of the label for every id over some rows; an id that does not occur has the base rate's."""
    places = ids.places(tensors[ids.name])[rows]
    chosen = labels[rows].astype(np.float64)
    base = float(np.clip(chosen.mean(), 1e-3, 1 - 1e-3))
    count = np.bincount(places.ravel(), minlength=ids.total)
    positive = np.bincount(places.ravel(), np.repeat(chosen, ids.columns), minlength=ids.total)
    rate = (positive + _SMOOTHING * base) / (count + _SMOOTHING)
    return np.log(rate / (1.0 - rate)).astype(np.float32)
