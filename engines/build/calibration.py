"""Real rows for calibration and gates, taken from recorded traffic so that rarely seen users are in them.

Traffic is dominated by its most active users; a calibration set drawn uniformly hardly holds the others, whose short
histories and cold ids have other activation ranges. So rows are drawn in equal shares from strata of user activity.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engines.base import Features
from engines.errors import LoadError
from schemas.event import BUILTIN_EVENTS
from schemas.spec import ModelSpec
from schemas.tables import Table
from schemas.wire import Format, wire

log = logging.getLogger("scorelane.engines.build.calibration")

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

    `label` and `user` are columns of the file; without `user` it is whose event it is (see `_Recording`). `tables` are
    the package's static embeddings, where the spec names any. Records that cannot be scored are left out with a
    warning. Raises `LoadError` when the file cannot be read, its columns are not those of the spec, or no row is left.
    """
    from schemas.encoder import Encoder
    from schemas.errors import InvalidEvent
    from schemas.fit import fit
    from schemas.samples import rows

    encode = Encoder(spec, "msgpack").encode
    recording = _Recording(spec, "msgpack", tables)
    values: list[bytes] = []
    columns: list[Mapping[str, object]] = []

    def flush() -> None:
        kept = [columns[position] for position in recording.add(values)]
        if kept and label is not None:
            recording.labels.append(_labels(kept, label, path))
        if kept and user is not None:
            recording.users[-len(kept) :] = [_hashable(row.get(user)) for row in kept]
        values.clear()
        columns.clear()

    try:
        if problem := fit(spec, path).problem:
            raise LoadError(f"{path}: {problem}")
        for row in rows(path):
            try:
                values.append(encode(row))
            except InvalidEvent as error:
                recording.reasons[str(error)] += 1
                continue
            columns.append(row)
            if len(values) == CHUNK:
                flush()
        flush()
    except (OSError, ValueError) as error:
        raise LoadError(f"{path}: cannot be read as recorded events: {error}") from error
    return recording.rowset(path, "row of this file")


def recorded(
    spec: ModelSpec, values: Sequence[bytes], path: Path, *, tables: Mapping[str, Table] | None = None
) -> Rowset:
    """Rows of a topic's events as they are, in JSON or msgpack as most of them. `path` is where they come from.

    Records that cannot be scored are left out with a warning. Raises `LoadError` when no row is left.
    """
    like_json = sum(value.lstrip().startswith((b"{", b"[")) for value in values)  # in msgpack these are integers
    recording = _Recording(spec, "json" if 2 * like_json > len(values) else "msgpack", tables)
    for start in range(0, len(values), CHUNK):
        recording.add(values[start : start + CHUNK])
    return recording.rowset(path, "event of this trace")


class _Recording:
    """Events decoded so far, with their users: the viewer or user of a built-in event, else the event's own key."""

    def __init__(self, spec: ModelSpec, format: Format, tables: Mapping[str, Table] | None) -> None:
        from schemas.decoder import Decoder

        self._decode = Decoder(spec, format, tables=tables).decode
        self._user = _user_of(spec, format)
        self._parts: list[Features] = []
        self.users: list[Hashable | None] = []
        self.labels: list[NDArray[np.float32]] = []
        self.reasons: Counter[str] = Counter()
        """Why records cannot be scored -> how many."""

    def add(self, values: Sequence[bytes]) -> list[int]:
        """Decode a chunk; the positions in it of those that can be scored."""
        decoded = self._decode(values)
        self.reasons.update(str(error) for _, error in decoded.invalid)
        positions: list[int] = decoded.positions.tolist()
        if positions:
            self._parts.append(decoded.tensors)
            users = decoded.keys if self._user is None else map(self._user, (values[at] for at in positions))
            self.users += map(_hashable, users)
        return positions

    def rowset(self, path: Path, what: str) -> Rowset:
        """All of it, and a warning of what is missing. Raises `LoadError` when nothing is there."""
        worst = self.reasons.most_common(1)[0][0] if self.reasons else "it has no records"
        if not self._parts:
            raise LoadError(f"{path}: no {what} fits the model's spec ({worst})")
        rows = Rowset(
            {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]},
            np.concatenate(self.labels) if self.labels else None,
            self.users,
        )
        if out := self.reasons.total():
            records = out + len(rows)
            log.warning(
                "%s: %d of %d records cannot be scored and are left out, such as: %s", path, out, records, worst
            )
        return rows


def _user_of(spec: ModelSpec, format: Format) -> Callable[[bytes], Hashable] | None:
    """What reads the user from a built-in event; None where the spec is its own."""
    builtin = BUILTIN_EVENTS.get(spec.event)
    if builtin is None:
        return None
    body = wire(spec, format)
    decode = (msgspec.msgpack if format == "msgpack" else msgspec.json).Decoder(body.struct()).decode
    user = attrgetter(body.attribute(builtin.user))
    return lambda value: user(decode(value))


def _labels(rows: Sequence[Mapping[str, object]], label: str, path: Path) -> NDArray[np.float32]:
    try:
        labels = np.array([float(str(row[label])) for row in rows], dtype=np.float32)
    except (KeyError, ValueError) as error:
        raise LoadError(f"{path}: column {label!r}: {error}; every row needs 0 or 1 there") from error
    if not np.isin(labels, (0.0, 1.0)).all():
        raise LoadError(f"{path}: column {label!r}: {labels[~np.isin(labels, (0, 1))][0]:g} is neither 0 nor 1")
    return labels


def _hashable(user: object) -> Hashable | None:
    return user if user is None or isinstance(user, str | int) else str(user)
