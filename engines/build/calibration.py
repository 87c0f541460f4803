"""Real rows for calibration and gates, taken from recorded traffic so that rarely seen users are in them.

Traffic is dominated by its most active users; a calibration set drawn uniformly hardly holds the others, whose short
histories and cold ids have other activation ranges. So rows are drawn in equal shares from strata of user activity.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engines.base import Features
from engines.errors import LoadError
from schemas.spec import ModelSpec
from schemas.tables import Table

STRATA: Mapping[str, tuple[int, float]] = {"rare": (1, 4), "regular": (5, 19), "active": (20, float("inf"))}
"""Stratum -> fewest and most events of a row's user in the recording, both inclusive."""

CHUNK = 4096
"""Records decoded at a time."""


@dataclass(frozen=True, slots=True)
class Rowset:
    """Rows in the model's tensors, with the clicks where they are known."""

    features: Features
    labels: NDArray[np.float32] | None = None
    """[n] 0 or 1."""
    users: Sequence[Hashable | None] = field(default=())
    """[n] who each row belongs to, None = nobody known; empty = not recorded."""

    def __len__(self) -> int:
        return len(next(iter(self.features.values())))

    def take(self, index: NDArray[np.int64]) -> "Rowset":
        """The rows at these positions, in this order."""
        return Rowset(
            {name: np.ascontiguousarray(tensor[index]) for name, tensor in self.features.items()},
            None if self.labels is None else self.labels[index],
            [self.users[i] for i in index.tolist()] if self.users else (),
        )

    def batches(self, size: int) -> Iterable[Features]:
        """Consecutive batches of `size` rows, the last one possibly smaller."""
        for start in range(0, len(self), size):
            yield {name: tensor[start : start + size] for name, tensor in self.features.items()}


def activity(users: Sequence[Hashable | None]) -> NDArray[np.int64]:
    """[n] number of rows of each row's user. A row without a user counts as a user of its own."""
    counts = Counter(user for user in users if user is not None)
    return np.array([1 if user is None else counts[user] for user in users], dtype=np.int64)


def stratified(rows: Rowset, want: int, seed: int = 0) -> tuple[Rowset, dict[str, int]]:
    """At most `want` rows in their order, in equal shares from each stratum, and how many came from which.

    What a stratum lacks is taken from the others. The same rows and seed give the same set.
    """
    events = activity(rows.users or [None] * len(rows))
    rng = np.random.default_rng(seed)
    pools = {
        name: rng.permutation(np.flatnonzero((events >= low) & (events <= high)))
        for name, (low, high) in STRATA.items()
    }
    shares = dict.fromkeys(pools, 0)
    left = min(want, len(rows))
    while left:
        open_pools = [name for name in pools if shares[name] < len(pools[name])]
        share = max(1, left // len(open_pools))
        for name in open_pools:
            more = min(share, len(pools[name]) - shares[name], left)
            shares[name] += more
            left -= more
    index = np.sort(np.concatenate([pools[name][:share] for name, share in shares.items()]))
    return rows.take(index), shares


def read(
    spec: ModelSpec,
    path: Path,
    *,
    label: str | None = None,
    user: str | None = None,
    tables: Mapping[str, Table] | None = None,
) -> Rowset:
    """Rows of a CSV or JSONL recording through the same encoder and decoder as live events.

    `label` and `user` are columns of the file; without `user` the event's own key stands for it. `tables` are the
    package's static embeddings, where the spec names any. Records that cannot be scored are left out. Raises
    `LoadError` when the file cannot be read, its columns are not those of the spec, or no row is left.
    """
    from schemas.decoder import Decoder
    from schemas.encoder import Encoder
    from schemas.errors import InvalidEvent
    from schemas.fit import fit
    from schemas.samples import rows

    encode = Encoder(spec, "msgpack").encode
    decode = Decoder(spec, "msgpack", tables=tables).decode
    parts: list[Rowset] = []
    values: list[bytes] = []
    columns: list[Mapping[str, object]] = []
    reasons: Counter[str] = Counter()

    def flush() -> None:
        decoded = decode(values)
        reasons.update(str(error) for _, error in decoded.invalid)
        if len(decoded):
            kept = [columns[position] for position in decoded.positions.tolist()]
            users = [row.get(user) for row in kept] if user else decoded.keys
            parts.append(Rowset(decoded.tensors, _labels(kept, label, path), [_hashable(u) for u in users]))
        values.clear()
        columns.clear()

    try:
        if problem := fit(spec, path).problem:
            raise LoadError(f"{path}: {problem}")
        for row in rows(path):
            try:
                values.append(encode(row))
            except InvalidEvent as error:
                reasons[str(error)] += 1
                continue
            columns.append(row)
            if len(values) == CHUNK:
                flush()
        if values:
            flush()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read as recorded events: {error}") from error
    if not parts:
        [(worst, _)] = reasons.most_common(1)
        raise LoadError(f"{path}: no row of this file fits the model's spec ({worst})")
    return joined(parts)


def recorded(
    spec: ModelSpec, values: Sequence[bytes], path: Path, *, tables: Mapping[str, Table] | None = None
) -> Rowset:
    """Rows of a topic's events as they are, in JSON or msgpack as most of them, with the events' own keys as users.
    `path` is where they come from. Records that cannot be scored are left out. Raises `LoadError` when no row is left.
    """
    from schemas.decoder import Decoder

    like_json = sum(value.lstrip().startswith((b"{", b"[")) for value in values)  # in msgpack these are integers
    decode = Decoder(spec, "json" if 2 * like_json > len(values) else "msgpack", tables=tables).decode
    parts, reason = [], "it has no records"
    for start in range(0, len(values), CHUNK):
        decoded = decode(values[start : start + CHUNK])
        if len(decoded):
            parts.append(Rowset(decoded.tensors, None, [_hashable(key) for key in decoded.keys]))
        elif not parts:
            reason = str(decoded.invalid[0][1])
    if not parts:
        raise LoadError(f"{path}: no event of this trace fits the model's spec ({reason})")
    return joined(parts)


def joined(parts: Sequence[Rowset]) -> Rowset:
    """Rows of all parts one after another; labels only when every part has them."""
    features = {name: np.concatenate([part.features[name] for part in parts]) for name in parts[0].features}
    labels = [part.labels for part in parts if part.labels is not None]
    users = [user for part in parts for user in part.users]
    return Rowset(features, np.concatenate(labels) if len(labels) == len(parts) else None, users)


def _labels(rows: Sequence[Mapping[str, object]], label: str | None, path: Path) -> NDArray[np.float32] | None:
    if label is None:
        return None
    try:
        labels = np.array([float(str(row[label])) for row in rows], dtype=np.float32)
    except (KeyError, ValueError) as error:
        raise LoadError(f"{path}: column {label!r}: {error}; every row needs 0 or 1 there") from error
    if not np.isin(labels, (0.0, 1.0)).all():
        raise LoadError(f"{path}: column {label!r}: {labels[~np.isin(labels, (0, 1))][0]:g} is neither 0 nor 1")
    return labels


def _hashable(user: object) -> Hashable | None:
    return user if user is None or isinstance(user, str | int) else str(user)
