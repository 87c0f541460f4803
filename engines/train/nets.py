"""The nets in JAX, for training. `engines.train.export` writes the same arithmetic as ONNX; tests compare the two."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from engines.train.export import MASK
from engines.train.layout import Ids, Sequence
from engines.train.params import Z_LIMIT, Net

Arrays = Mapping[str, jax.Array]


def logit(net: Net, params: Arrays, batch: Arrays) -> jax.Array:
    """[n] logits of a batch of the layout's tensors."""
    joined = [_standardised(batch[part.name], part.name, params) for part in net.layout.numbers]
    if net.kind == "lr":
        return _linear(net, params, batch, joined)
    joined += [_entries(batch, ids, params).reshape(len(batch[ids.name]), -1) for ids in net.layout.ids]
    if net.kind == "din":
        joined.append(_attended(net, params, batch))
    else:
        joined += [_pooled(batch[part.name], params[f"{part.name}.table"]) for part in net.layout.sequences]
    value = jnp.concatenate(joined, axis=1)
    for index in range(len(net.hidden)):
        value = jax.nn.relu(value @ params[f"hidden.{index}.weight"] + params[f"hidden.{index}.bias"])
    return (value @ params["head.weight"] + params["head.bias"])[:, 0]


def _standardised(values: jax.Array, name: str, params: Arrays) -> jax.Array:
    flat = values.reshape(len(values), -1)
    squashed = jnp.sign(flat) * jnp.log(jnp.abs(flat) + 1.0)
    return jnp.clip((squashed - params[f"{name}.mean"]) * params[f"{name}.scale"], -Z_LIMIT, Z_LIMIT)


def _entries(batch: Arrays, ids: Ids, params: Arrays) -> jax.Array:
    """[n, columns, embed]."""
    flat = batch[ids.name].reshape(len(batch[ids.name]), -1)
    return params[f"{ids.name}.table"][flat + ids.offset]


def _pooled(ids: jax.Array, table: jax.Array) -> jax.Array:
    """[n, embed]: mean over the ids other than 0."""
    mask = jnp.minimum(ids, 1).astype(jnp.float32)
    total = (table[ids] * mask[:, :, None]).sum(1)
    return total / jnp.maximum(mask.sum(1, keepdims=True), 1.0)


def _linear(net: Net, params: Arrays, batch: Arrays, numbers: list[jax.Array]) -> jax.Array:
    total = params["head.bias"][0]
    if numbers:
        total = total + (jnp.concatenate(numbers, axis=1) @ params["head.weight"])[:, 0]
    for ids in net.layout.ids:
        total = total + _entries(batch, ids, params).sum((1, 2))
    for part in net.layout.sequences:
        total = total + _pooled(batch[part.name], params[f"{part.name}.table"])[:, 0]
    return total


def _attended(net: Net, params: Arrays, batch: Arrays) -> jax.Array:
    """[n, (sequences + pairs) * embed]. The scoring net sees step, target and their product; the difference that the
    paper adds is a linear part of step and target already."""
    layout = net.layout
    columns = {ids.name: ids for ids in layout.ids}
    steps = {part.name: params[f"{part.name}.table"][batch[part.name]] for part in layout.sequences}
    queries = []
    for pair in layout.pairs:
        ids = columns[pair.tensor]
        target = batch[pair.tensor].reshape(len(batch[pair.tensor]), -1)[:, pair.column]
        if pair.shared:
            queries.append(params[f"{pair.sequence}.table"][target])
        else:
            queries.append(params[f"{pair.tensor}.table"][target + ids.offset[pair.column]])
    key = jnp.concatenate(list(steps.values()), axis=2)
    query = jnp.concatenate(queries, axis=1)
    asked = jnp.concatenate([steps[pair.sequence] for pair in layout.pairs], axis=2)
    both = jnp.concatenate([key, asked * query[:, None, :]], axis=2)
    by_query = query @ params["attention.query.weight"] + params["attention.bias"]
    hidden = jax.nn.relu(both @ params["attention.key.weight"] + by_query[:, None, :])
    score = (hidden @ params["attention.head.weight"])[:, :, 0]
    mask = _mask(batch, layout.sequences[0])
    weight = jax.nn.softmax(score + (1.0 - mask) * MASK, axis=1)
    pooled = (weight[:, :, None] * key).sum(1) * mask.max(1, keepdims=True)
    return jnp.concatenate([pooled, pooled[:, layout.compared(net.embed)] * query], axis=1)


def _mask(batch: Arrays, sequence: Sequence) -> jax.Array:
    return jnp.minimum(batch[sequence.name], 1).astype(jnp.float32)
