"""Which plans pass: every figure against its limit, and speed in turns on a clock that the test moves."""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from engines.base import Features, Scores
from engines.build import gates, graph, pipeline, quantize, recipe, speed, table
from engines.build.calibration import Rowset
from engines.build.gates import Check, Measured
from engines.build.parity import Parity
from engines.build.speed import Speed
from engines.errors import LoadError
from engines.ort import OrtEngine
from engines.package import Package, write_package
from engines.plans import PRECISIONS, Precision
from tests.models import random_batch, tiny_package

GOOD = Parity(
    rows=1000,
    not_finite=0,
    max_abs=0.0,
    p99_abs=0.0,
    p99_rel=0.0,
    distinct=1000,
    distinct_reference=1000,
    ks=0.0,
    calibration=1.0,
    auc=0.8,
    auc_reference=0.8,
    auc_by="clicks",
)


def fast(p99_us: float = 100.0, rows_per_s: float = 1e6, bucket: int = 32) -> Speed:
    return Speed(bucket=bucket, batches=10, p50_us=50.0, p99_us=p99_us, rows_per_s=rows_per_s)


def measured(precision: Precision = "fp16", parity: Parity = GOOD, at: Speed | None = None) -> Measured:
    return Measured(precision=precision, parity={32: parity}, speed={32: at or fast()})


def verdict(candidate: Measured, **others: Measured) -> list[str]:
    """Names of the gates that fail."""
    everyone = {"candidate": candidate, **others}
    serving = "serving" if "serving" in others else None
    found = gates.report(everyone, "candidate", baseline="fp32" if "fp32" in others else None, serving=serving)
    assert found.passed == (not found.failed)
    return [f"{check.gate}/{check.against}" for check in found.failed]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_plan_that_equals_the_onnx_and_is_as_fast_passes(precision: Precision) -> None:
    assert verdict(measured(precision), fp32=measured("fp32"), serving=measured("fp16")) == []


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ({"not_finite": 1}, "not finite"),
        ({"max_abs": 0.0101}, "max error"),
        ({"p99_abs": 0.0051}, "p99 error"),
        ({"distinct": 940}, "distinct scores"),
        ({"ks": 0.0101}, "KS distance"),
        ({"calibration": 0.9949}, "calibration"),
        ({"calibration": 1.0051}, "calibration"),
        ({"auc": 0.8 * 0.9979}, "AUC drop"),
        ({"auc": None}, "AUC drop"),
    ],
)
def test_each_figure_has_a_gate_of_its_own(change: dict[str, float | None], gate: str) -> None:
    assert verdict(measured(parity=msgspec.structs.replace(GOOD, **change))) == [f"{gate}/onnx"]


def test_fp16_may_lose_a_fifth_of_a_percent_of_the_auc_and_int8_half_a_percent() -> None:
    for precision, allowed in (("fp16", 0.002), ("int8", 0.005)):
        for loss, failed in ((allowed * 0.99, []), (allowed * 1.01, ["AUC drop/onnx"])):
            parity = msgspec.structs.replace(GOOD, auc=0.8 * (1 - loss))
            assert verdict(measured(precision, parity)) == failed  # type: ignore[arg-type]


@pytest.mark.parametrize("other", ["fp32", "serving"])
def test_a_plan_slower_than_what_it_is_compared_with_fails(other: str) -> None:
    slow = measured(at=fast(p99_us=111.0, rows_per_s=0.84e6))
    assert verdict(slow, **{other: measured("fp32")}) == [
        f"p99 latency/{other if other == 'fp32' else 'serving'}",
        f"throughput/{other if other == 'fp32' else 'serving'}",
    ]
    assert verdict(measured(at=fast(p99_us=109.0, rows_per_s=0.86e6)), **{other: measured("fp32")}) == []


def test_of_few_different_scores_two_may_swap_places() -> None:
    for n, ks, failed in ((100, 0.02, []), (100, 0.03, ["KS distance/onnx"]), (1000, 0.02, ["KS distance/onnx"])):
        parity = msgspec.structs.replace(GOOD, distinct=n, distinct_reference=n, ks=ks)
        assert verdict(measured(parity=parity)) == failed


def test_a_check_without_a_value_never_passes() -> None:
    assert not Check(gate="x", bucket=1, observed=None, limit=1.0).passed
    assert not Check(gate="x", bucket=1, observed=None, limit=0.0, at_least=True).passed
    assert not Check(gate="x", bucket=1, observed=float("nan"), limit=1.0).passed


class Timed:
    """A session that takes a fixed time, on the test's clock, and at most `depth` batches."""

    def __init__(self, engine: "TimedEngine") -> None:
        self.engine, self.clock, self.depth = engine, engine.clock, engine.depth
        self.pending: list[int] = []
        self.batches = 0
        self.closed = False

    def submit(self, features: Features) -> None:
        assert len(self.pending) < self.depth
        self.pending.append(len(features["x"]))

    def collect(self) -> Scores:
        self.clock.now += self.engine.cost_ns * (100 if self.batches in self.engine.bursts else 1)
        self.batches += 1
        return np.zeros(self.pending.pop(0), np.float32)

    def close(self) -> None:
        assert not self.pending
        self.closed = True


class TimedEngine:
    name, version, max_batch = "timed", "1", 8

    def __init__(self, clock: "Clock", cost_ns: int, depth: int = 2) -> None:
        self.clock, self.cost_ns, self.depth = clock, cost_ns, depth
        self.opened: list[Timed] = []
        self.bursts: set[int] = set()

    def open_session(self) -> Timed:
        self.opened.append(Timed(self))
        return self.opened[-1]

    def close(self) -> None:
        pass


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def test_speed_is_measured_in_turns_on_new_sessions_and_by_the_clock() -> None:
    clock = Clock()
    engines = {"a": TimedEngine(clock, 50_000), "b": TimedEngine(clock, 200_000, depth=1)}
    batches = {8: [{"x": np.zeros((8, 1), np.float32)}]}
    found = speed.measure(engines, batches, sittings=2, rounds=3, per_round=4, clock_ns=clock)
    assert found["a"][8] == Speed(bucket=8, batches=24, p50_us=50.0, p99_us=50.0, rows_per_s=pytest.approx(160_000.0))
    assert found["b"][8].p99_us == 200.0
    for engine in engines.values():
        assert [session.batches for session in engine.opened] == [speed.WARM_UP + 3 * 2 * 4] * 2
        assert all(session.closed for session in engine.opened)


def test_a_burst_in_some_rounds_does_not_decide() -> None:
    clock = Clock()
    engine = TimedEngine(clock, 50_000)
    engine.bursts = {speed.WARM_UP + 5}
    found = speed.measure({"a": engine}, {8: [{"x": np.zeros((8, 1), np.float32)}]}, sittings=1, clock_ns=clock)
    assert found["a"][8].p99_us == 50.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few batches: what is looked at is the parity."""
    monkeypatch.setattr(speed, "measure", partial(speed.measure, rounds=1, per_round=3))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return tiny_package(tmp_path_factory.mktemp("models"), "criteo")


def variant(package: Package, directory: Path, model: onnx.ModelProto) -> OrtEngine:
    files = {"model.onnx": model.SerializeToString(), "spec.toml": package.spec.dumps()}
    changed = write_package(directory, name="changed", version="1", kind="mlp", files=files)
    return OrtEngine(changed, max_batch=64)


def test_a_quantised_model_is_measured_against_the_onnx_at_every_bucket(
    package: Package, tmp_path: Path, quick: None
) -> None:
    model = graph.prepared(onnx.load(package.file("model.onnx")))
    rows = Rowset(random_batch(package.spec, 200, seed=1))
    quantised = quantize.quantize(model, Rowset(random_batch(package.spec, 500, seed=2)))
    reference = OrtEngine(package, max_batch=64)
    engines: dict[str, tuple[Precision, OrtEngine]] = {
        "fp32": ("fp32", reference),
        "int8": ("int8", variant(package, tmp_path, quantised.model)),
    }
    found = gates.evaluate(engines, reference, rows, [1, 8, 64], sittings=1)
    assert [*found["int8"].parity] == [*found["int8"].speed] == [1, 8, 64]
    assert all(one.max_abs < 1e-6 for one in found["fp32"].parity.values())
    assert all(0.0 < one.max_abs < 0.1 for one in found["int8"].parity.values())
    assert found["int8"].parity[64].rows == 200
    assert not [check.gate for check in gates.parity_checks(found["fp32"]) if not check.passed]


def test_a_model_with_rows_in_another_order_fails(package: Package, tmp_path: Path, quick: None) -> None:
    class Reversed(OrtEngine):
        def _score(self, features: Features, n: int) -> Scores:
            return np.ascontiguousarray(super()._score(features, n)[::-1])

    rows = Rowset(random_batch(package.spec, 100, seed=1))
    engines: dict[str, tuple[Precision, OrtEngine]] = {"fp32": ("fp32", Reversed(package, max_batch=8))}
    found = gates.evaluate(engines, OrtEngine(package, max_batch=8), rows, [8], sittings=1)
    failed = gates.report(found, "fp32", baseline="fp32").failed
    assert {"max error", "p99 error", "AUC drop"} <= {check.gate for check in failed}


def test_fewer_rows_than_the_bucket_are_repeated_and_none_is_refused(package: Package, quick: None) -> None:
    reference = OrtEngine(package, max_batch=64)
    engines: dict[str, tuple[Precision, OrtEngine]] = {"fp32": ("fp32", reference)}
    found = gates.evaluate(engines, reference, Rowset(random_batch(package.spec, 5)), [64], sittings=1)
    assert found["fp32"].parity[64].rows == 128
    with pytest.raises(LoadError, match="no rows"):
        gates.evaluate(engines, reference, Rowset(random_batch(package.spec, 0)), [64])


def test_the_report_is_a_table_for_people_and_plain_values_for_machines() -> None:
    bad = measured("int8", msgspec.structs.replace(GOOD, ks=0.5, auc=None), fast(p99_us=300.0))
    everyone = {"fp32": measured("fp32"), "int8": bad, "in service": measured("fp16")}
    reports = {name: gates.report(everyone, name, baseline="fp32", serving="in service") for name in ("fp32", "int8")}
    headings, rows = table.side_by_side(reports)
    assert headings == ["batch", "", "fp32", "int8", "in service"]
    cells = {row[1]: row[2:] for row in rows}
    assert cells["KS distance"] == ["0.0000", "0.5000!", "0.0000"]
    assert cells["AUC"] == ["0.80000 (clicks)", "-!", "0.80000 (clicks)"]
    assert cells["p99 us"] == ["100", "300!", "100"]
    _, checked = table.checks(reports["int8"])
    assert [row[0] for row in checked if row[-1] == "FAILED"] == [row[0] for row in checked[:4]]
    plain = pipeline.to_json(reports["int8"])
    assert plain["failed"] == ["KS distance at 32", "AUC drop at 32", "p99 latency at 32", "p99 latency at 32"]
    assert msgspec.json.decode(msgspec.json.encode(plain)) == plain
    assert plain["passed"] is False


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_a_recipe_that_needs_rows_says_so(precision: Precision, package: Package) -> None:
    model = graph.prepared(onnx.load(package.file("model.onnx")))
    with pytest.raises(LoadError, match=f"{precision} needs rows"):
        recipe.apply(model, precision)
    assert recipe.apply(model, "tf32").model is model
