"""The gates a plan must pass before it may serve, and the report about it.

A gate compares one figure with its limit: at every bucket the candidate's scores with the ONNX model's on the same real
rows, and its speed with the float32 plan's and with that of the plan in service.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial

import msgspec
import numpy as np

from engines.base import Engine, Features, Session
from engines.build import parity, speed
from engines.build.calibration import Rowset
from engines.build.parity import Parity
from engines.build.speed import Speed
from engines.errors import LoadError
from engines.plans import Precision

INPUT_SETS = 8
"""Different batches of a bucket that the timing runs through."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan of one precision may lose. Shares are fractions of 1."""

    max_abs: float
    p99_abs: float
    distinct: float
    """Fewest distinct scores, as a share of the reference's."""
    ks: float
    calibration: float
    """Largest distance of the calibration ratio from 1."""
    auc_drop: float
    latency: float = 0.10
    """By how much the p99 latency may exceed that of a plan it is compared with."""
    throughput: float = 0.15
    """By how much the throughput may fall short. The same plans, measured twice on an H200, differed by up to 12 % in
    throughput and 3 % in p99 latency."""


LIMITS: Mapping[Precision, Limits] = {
    "fp32": Limits(max_abs=1e-4, p99_abs=1e-5, distinct=0.99, ks=0.002, calibration=0.0005, auc_drop=0.0005),
    "tf32": Limits(max_abs=1e-2, p99_abs=5e-3, distinct=0.98, ks=0.01, calibration=0.005, auc_drop=0.002),
    "fp16": Limits(max_abs=1e-2, p99_abs=5e-3, distinct=0.95, ks=0.01, calibration=0.005, auc_drop=0.002),
    "int8": Limits(max_abs=1e-1, p99_abs=3e-2, distinct=0.90, ks=0.03, calibration=0.02, auc_drop=0.005),
}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    gate: str
    bucket: int
    observed: float | None
    """None when it could not be measured, which never passes."""
    limit: float
    at_least: bool = False
    """Whether the limit is the smallest value that passes; else it is the largest."""
    against: str = "onnx"

    @property
    def passed(self) -> bool:
        if self.observed is None:
            return False
        return self.observed >= self.limit if self.at_least else self.observed <= self.limit


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One plan at every bucket."""

    precision: Precision
    parity: dict[int, Parity]
    speed: dict[int, Speed]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    candidate: str
    measured: Measured
    checks: list[Check]
    compared: dict[str, Measured]
    """The other plans of the same run, by name."""

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]


def evaluate(
    engines: Mapping[str, tuple[Precision, Engine]],
    reference: Engine,
    rows: Rowset,
    buckets: list[int],
    *,
    sequences: Collection[str] = (),
    lengths: Collection[int] = (),
    sittings: int = speed.SITTINGS,
) -> dict[str, Measured]:
    """Engine name -> parity with `reference` (the ONNX model) and speed, at every bucket, all on the same rows.

    Which of the buckets of one batch size runs a row depends on measured costs. So, for parity, the rows are also cut
    to each of `lengths` in the tensors `sequences`, and scored in the buckets of that length alone. Raises `LoadError`
    without rows, and what the engines raise.
    """
    if not len(rows):
        raise LoadError("no rows to compare engines on; give --rows FILE")
    parities: dict[str, dict[int, Parity]] = {name: {} for name in engines}
    inputs: dict[int, list[Features]] = {}
    for smaller, bucket in zip([0, *buckets], buckets, strict=False):
        whole = rows.take(np.arange(max(len(rows), 2 * bucket), dtype=np.int64) % len(rows))
        sets = {None: whole} | {length: parity.cut(whole, sequences, length) for length in lengths}
        exact = [
            parity.scored(reference.open_session, part, min(bucket, reference.max_batch)) for part in sets.values()
        ]
        labels = None if whole.labels is None else np.tile(whole.labels, len(sets))
        for name, (_, engine) in engines.items():
            found = [parity.scored(_opener(engine, at), part, bucket, smaller) for at, part in sets.items()]
            parities[name][bucket] = parity.compare(np.concatenate(exact), np.concatenate(found), labels)
        inputs[bucket] = [batch for batch in whole.batches(bucket) if _length(batch) == bucket][:INPUT_SETS]
    speeds = speed.measure({name: engine for name, (_, engine) in engines.items()}, inputs, sittings=sittings)
    return {
        name: Measured(precision=precision, parity=parities[name], speed=speeds[name])
        for name, (precision, _) in engines.items()
    }


def report(
    measured: Mapping[str, Measured], candidate: str, *, baseline: str | None, serving: str | None = None
) -> Report:
    """The verdict on one of the measured plans. `baseline` is the float32 plan, `serving` the one in service."""
    subject = measured[candidate]
    checks = [
        *parity_checks(subject),
        *(
            check
            for other in dict.fromkeys((baseline, serving))
            if other is not None and other != candidate
            for check in speed_checks(subject, measured[other], other)
        ),
    ]
    others = {name: other for name, other in measured.items() if name != candidate}
    return Report(candidate=candidate, measured=subject, checks=checks, compared=others)


def parity_checks(subject: Measured) -> list[Check]:
    limits = LIMITS[subject.precision]
    checks = []
    for bucket, found in subject.parity.items():
        figures: list[tuple[str, float | None, float, bool]] = [
            ("not finite", float(found.not_finite), 0.0, False),
            ("max error", found.max_abs, limits.max_abs, False),
            ("p99 error", found.p99_abs, limits.p99_abs, False),
            ("distinct scores", found.distinct_ratio, limits.distinct, True),
            # The distance moves in steps of one score: two that swap places make no other distribution.
            ("KS distance", found.ks, max(limits.ks, 2.5 / max(found.distinct_reference, 1)), False),
            ("calibration", abs(found.calibration - 1.0), limits.calibration, False),
            ("AUC drop", found.auc_drop, limits.auc_drop, False),
        ]
        checks += [
            Check(gate=gate, bucket=bucket, observed=value, limit=limit, at_least=at_least)
            for gate, value, limit, at_least in figures
        ]
    return checks


def speed_checks(subject: Measured, other: Measured, name: str) -> list[Check]:
    """Latency and throughput at the buckets that both plans have, as ratios to the other's."""
    limits = LIMITS[subject.precision]
    checks = []
    for bucket in subject.speed.keys() & other.speed.keys():
        mine, theirs = subject.speed[bucket], other.speed[bucket]
        latency, throughput = mine.p99_us / theirs.p99_us, mine.rows_per_s / theirs.rows_per_s
        checks += [
            Check(gate="p99 latency", bucket=bucket, observed=latency, limit=1 + limits.latency, against=name),
            Check(
                gate="throughput",
                bucket=bucket,
                observed=throughput,
                limit=1 - limits.throughput,
                at_least=True,
                against=name,
            ),
        ]
    return sorted(checks, key=lambda check: check.bucket)


def _opener(engine: Engine, length: int | None) -> Callable[[], Session]:
    """How a session with the buckets of this length alone is opened, or any session where there are none."""
    open_session: Callable[..., Session] = engine.open_session
    return partial(open_session, length) if length in getattr(engine, "lengths", ()) else open_session


def _length(features: Features) -> int:
    return len(next(iter(features.values())))
