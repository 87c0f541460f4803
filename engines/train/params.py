"""A net's parameters as plain arrays, and their random start. Numpy only: export and tests need no training library.

For each tensor T of the layout:

    T.mean, T.scale     numbers: mean and 1 / standard deviation of squash(x), [columns]
    T.table             ids and sequences: one embedding a row, [total or size, embed]
    attention.{query,key}.weight, .bias, attention.head.weight    the scoring net of DIN
    hidden.0.weight, hidden.0.bias, ...                           [in, out], [out]
    head.weight, head.bias                                        [in, 1], [1]
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engines.train.layout import Layout

Kind = Literal["lr", "mlp", "din"]
Params = dict[str, NDArray[np.float32]]

Z_LIMIT = 8.0
"""Standardised numbers are held within this many standard deviations."""


@dataclass(frozen=True, slots=True)
class Net:
    """The shape of a net; with `Params` it is a model.

    lr: a weight a number and a weight an id (embeddings of width 1), summed; a sequence gives its mean weight.
    mlp: embeddings, mean-pooled over sequences, with the numbers through hidden layers of ReLU.
    din: the same, but a sequence is pooled by attention against the target (Zhou et al., "Deep Interest Network for
    Click-Through Rate Prediction", 2018), and the product of what was found with the target is an input too: softmax
    says where the best step is, not how good it is.
    """

    kind: Kind
    layout: Layout
    embed: int = 8
    hidden: tuple[int, ...] = (64, 32)
    attention: int = 32
    """Width of the hidden layer that scores a step of the sequence."""

    @property
    def width(self) -> int:
        """Columns of the joined inputs of the first layer. In lr the ids' weights are added behind it."""
        numbers = sum(part.columns for part in self.layout.numbers)
        if self.kind == "lr":
            return numbers
        ids = sum(part.columns for part in self.layout.ids)
        compared = len(self.layout.pairs) if self.kind == "din" else 0
        return numbers + (ids + len(self.layout.sequences) + compared) * self.embed

    def start(self, seed: int) -> Params:
        """Random parameters: He-scaled layers, small embeddings, numbers taken as standardised already."""
        rng = np.random.default_rng(seed)
        params: Params = {}
        for numbers in self.layout.numbers:
            params[f"{numbers.name}.mean"] = np.zeros(numbers.columns, np.float32)
            params[f"{numbers.name}.scale"] = np.ones(numbers.columns, np.float32)
        embed = 1 if self.kind == "lr" else self.embed
        # An id that was never trained keeps its start, so the start must be near to no opinion. What attention
        # compares must differ from the start: equal ids are then alike, and others are not, before any training.
        near, apart = (0.0, 0.0) if self.kind == "lr" else (0.05, 0.5 if self.kind == "din" else 0.05)
        for ids in self.layout.ids:
            params[f"{ids.name}.table"] = _normal(rng, (ids.total, embed), near)
        for sequence in self.layout.sequences:
            params[f"{sequence.name}.table"] = _normal(rng, (sequence.size, embed), apart)
        if self.kind == "din":
            keys = len(self.layout.sequences) * self.embed
            query = len(self.layout.pairs) * self.embed
            params["attention.key.weight"] = _normal(rng, (keys + query, self.attention), (2 / (keys + query)) ** 0.5)
            params["attention.query.weight"] = _normal(rng, (query, self.attention), (2 / query) ** 0.5)
            params["attention.bias"] = np.zeros(self.attention, np.float32)
            params["attention.head.weight"] = _normal(rng, (self.attention, 1), (1 / self.attention) ** 0.5)
        width = self.width
        if self.kind != "lr":
            for index, out in enumerate(self.hidden):
                params[f"hidden.{index}.weight"] = _normal(rng, (width, out), (2 / width) ** 0.5)
                params[f"hidden.{index}.bias"] = np.zeros(out, np.float32)
                width = out
        params["head.weight"] = _normal(rng, (width, 1), 0.0 if self.kind == "lr" else (1 / width) ** 0.5)
        params["head.bias"] = np.zeros(1, np.float32)
        return params


def frozen(name: str) -> bool:
    """True for parameters that are measured on the data and not trained."""
    return name.endswith((".mean", ".scale"))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) * spread).astype(np.float32)
