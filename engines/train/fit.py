"""Fitting a net: Adam with decoupled weight decay on the log loss, one compiled epoch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from engines.train.nets import logit
from engines.train.params import Net, Params, frozen
from schemas.rows import Tensors

Labels = NDArray[np.float32]
Probabilities = NDArray[np.float32]
_PREDICT_ROWS = 4096
_TABLE_SPEED = 0.05


def fit(
    net: Net, tensors: Tensors, labels: Labels, *, epochs: int, seed: int, rate: float = 3e-3, decay: float = 1.0
) -> Params:
    """Parameters after `epochs` passes over all rows in an order that `seed` decides.

    `labels` [n] are 0 or 1. `rate` is Adam's step, and every parameter shrinks by its part `rate * decay` in each step.
    The same arguments give the same parameters on the same machine.
    """
    params = net.start(seed)
    _measure(net, tensors, params)
    base = float(np.clip(labels.mean(), 1e-3, 1 - 1e-3))
    params["head.bias"] = np.array([np.log(base / (1 - base))], np.float32)
    fixed = {name: jnp.asarray(array) for name, array in params.items() if frozen(name)}
    trained = {name: jnp.asarray(array) for name, array in params.items() if not frozen(name)}
    optimizer = optax.adamw(rate, weight_decay=decay)
    rows = {name: jnp.asarray(tensor) for name, tensor in tensors.items()}
    targets = jnp.asarray(labels)
    n = len(labels)
    size = max(1, min(256, n // 8))

    def loss(trained: dict[str, jax.Array], index: jax.Array) -> jax.Array:
        values = logit(net, {**fixed, **trained}, {name: tensor[index] for name, tensor in rows.items()})
        mean: jax.Array = optax.sigmoid_binary_cross_entropy(values, targets[index]).mean()
        return mean

    def step(
        state: tuple[dict[str, jax.Array], optax.OptState], index: jax.Array
    ) -> tuple[tuple[dict[str, jax.Array], optax.OptState], jax.Array]:
        trained, moments = state
        value, gradient = jax.value_and_grad(loss)(trained, index)
        updates, moments = optimizer.update(gradient, moments, trained)
        updates = {name: update * _speed(net, name) for name, update in updates.items()}
        return (optax.apply_updates(trained, updates), moments), value

    epoch = jax.jit(partial(jax.lax.scan, step), donate_argnums=0)
    rng = np.random.default_rng(seed)
    state = (trained, optimizer.init(trained))
    for _ in range(epochs):
        order = rng.permutation(n)[: n // size * size].reshape(-1, size)
        state, _ = epoch(state, jnp.asarray(order))
    return {name: np.asarray(array) for name, array in {**fixed, **state[0]}.items()}


def _speed(net: Net, name: str) -> float:
    """Share of Adam's step that a parameter takes. Adam gives a rare id as large a step as a common one, so that
    embeddings learn their rows by heart before the layers learn anything; they go slower."""
    return _TABLE_SPEED if net.kind != "lr" and name.endswith(".table") else 1.0


def predict(net: Net, params: Params, tensors: Tensors) -> Probabilities:
    """[n] probabilities of the net as JAX computes them."""
    forward = jax.jit(lambda params, batch: jax.nn.sigmoid(logit(net, params, batch)))
    n = len(next(iter(tensors.values())))
    parts = [
        np.asarray(forward(params, {name: tensor[start : start + _PREDICT_ROWS] for name, tensor in tensors.items()}))
        for start in range(0, n, _PREDICT_ROWS)
    ]
    return np.concatenate(parts)


def _measure(net: Net, tensors: Tensors, params: Params) -> None:
    """Set mean and scale of every column of numbers to those of the rows; a constant column is only centred."""
    for part in net.layout.numbers:
        flat = tensors[part.name].reshape(len(tensors[part.name]), -1).astype(np.float64)
        squashed = np.sign(flat) * np.log1p(np.abs(flat))
        deviation = squashed.std(0)
        params[f"{part.name}.mean"] = squashed.mean(0).astype(np.float32)
        params[f"{part.name}.scale"] = (1.0 / np.where(deviation > 1e-6, deviation, 1.0)).astype(np.float32)
