"""From a package and recorded events to a plan in service, on a device that is not there.

TensorRT's builder is replaced by one that keeps the ONNX graph and reports each node's real types as the inspector
would; the engine runs on `fake_gpu`. So recipes, gates, files and the command line are the real ones.
"""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import engines
from engines import plans
from engines.build import builder, graph, inspector, pipeline, speed
from engines.build.builder import Options
from engines.build.calibration import Rowset
from engines.build.compiler import Compiled
from engines.errors import LoadError
from engines.package import Package, write_package
from engines.plans import PlanFile, Precision, Profile
from schemas import samples
from schemas.encoder import Encoder
from tests.engines import fake_gpu
from tests.models import random_batch, tiny_package
from worker.cli.engine import _print, engine
from worker.replay.trace import TraceHead, TraceRecord, TraceWriter

SAMPLE = Path(__file__).parents[2] / "data" / "criteo_sample.txt"
NAMES = {onnx.TensorProto.FLOAT: "Float", onnx.TensorProto.FLOAT16: "Half", onnx.TensorProto.INT32: "Int32"}


class FakeBuilder:
    """`compile_plan` without TensorRT. `ignores_types` builds everything in float32, as a bad flag once did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.built: list[Precision] = []
        self.caches: list[bytes] = []
        self.ignores_types = False

    def __call__(
        self, model: bytes, *, name: str, profiles: list[Profile], precision: Precision, timing_cache: bytes, **_: int
    ) -> Compiled:
        self.built.append(precision)
        self.caches.append(timing_cache)
        path = self.folder / f"{name}-{len(self.built)}.onnx"
        path.write_bytes(model)
        text = self.inspected(onnx.load_from_string(model))
        return Compiled(
            plan=str(path).encode(),
            timing_cache=b"tactics" + bytes([len(self.built)]),
            layers=inspector.parse(text),
            inspected=text,
            output="score",
            build_s=0.5,
        )

    def inspected(self, model: onnx.ModelProto) -> str:
        values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
        types = {value.name: NAMES.get(value.type.tensor_type.elem_type, "Int64") for value in values}
        types |= {tensor.name: NAMES.get(tensor.data_type, "Int64") for tensor in model.graph.initializer}
        types |= {name: "Int8" for node in model.graph.node if "Dequantize" in node.op_type for name in node.output}
        if self.ignores_types:
            types = {name: "Float" if dtype in ("Half", "Int8") else dtype for name, dtype in types.items()}
        layers = [
            {
                "Name": node.name,
                "LayerType": node.op_type,
                "Inputs": [{"Name": name, "Format/Datatype": types.get(name, "")} for name in node.input],
                "Outputs": [],
                "Metadata": f"[ONNX Layer: {node.name}]",
            }
            for node in model.graph.node
            if "Quantize" not in node.op_type and "Dequantize" not in node.op_type
        ]
        return json.dumps({"Layers": layers, "Bindings": []})


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, module in fake_gpu.modules(fake_gpu.Gpu()).items():
        monkeypatch.setitem(sys.modules, name, module)
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name in fake_gpu.ENGINE_MODULES:
        sys.modules.pop(f"engines.{name}", None)
        vars(engines).pop(name, None)


@pytest.fixture
def built(device: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeBuilder:
    fake = FakeBuilder(tmp_path)
    monkeypatch.setattr(builder, "compile_plan", fake)
    # A timing on a shared machine decides nothing here: gates on speed have their own tests.
    monkeypatch.setattr(pipeline.gates, "speed_checks", lambda *_: [])
    monkeypatch.setattr(speed, "measure", partial(speed.measure, rounds=1, per_round=3))
    return fake


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return tiny_package(tmp_path / "models", "criteo", name="criteo")


def rows(package: Package, n: int = 300) -> Rowset:
    return Rowset(random_batch(package.spec, n, seed=4), None, [f"u{i % 50}" for i in range(n)])


def accept(package: Package, precision: Precision, **options: Any) -> tuple[PlanFile, pipeline.Report]:
    made = Options(precision=precision, batches=(1, 8, 32), **options)
    return pipeline.accept(package, made, rows(package), sittings=1, gate_rows=300)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_plan_is_built_judged_and_put_into_service(
    package: Package, built: FakeBuilder, precision: Precision
) -> None:
    plan, report = accept(package, precision)
    assert report.passed, report.failed
    here = {"tensorrt": plan.record.tensorrt, "compute_capability": plan.record.device.compute_capability}
    assert plans.choose(package.path, precision=precision, **here) == plan
    record = plan.record
    assert record.onnx_sha256 == package.manifest.files["model.onnx"]
    assert record.plan_sha256 == plans.sha256(plan.read())
    assert [profile.batch for profile in record.profiles] == [1, 8, 32]
    assert record.report["passed"] is True
    assert record.recipe.get("shown", {}) == ({} if precision == "fp32" else {"hidden.0": "shown", "hidden.1": "shown"})
    assert sum(record.recipe["strata"].values()) == 300


def test_the_float32_plan_is_built_for_comparison_but_not_put_into_service(
    package: Package, built: FakeBuilder
) -> None:
    plan, _ = accept(package, "fp16")
    assert built.built == ["fp16", "fp32"]
    states = {p.record.precision: (p.record.accepted, p.record.judged_ms > 0) for p in plans.found(package.path)}
    assert states == {"fp16": (True, True), "fp32": (False, False)}
    assert plan.record.accepted


def test_a_builder_that_ignores_the_asked_precision_is_found_out(package: Package, built: FakeBuilder) -> None:
    built.ignores_types = True
    for precision in ("fp16", "int8"):
        with pytest.raises(LoadError, match=rf"asked for {precision}.*hidden\.0"):
            accept(package, precision)  # type: ignore[arg-type]
    assert plans.found(package.path) == []


def test_a_plan_that_fails_a_gate_stays_outside_and_the_old_one_serves_on(
    package: Package, built: FakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = accept(package, "fp16")
    wrong = dict(rows(package).features)
    wrong["dense"] = wrong["dense"] * np.float32(0)
    strict = pipeline.gates.LIMITS["fp16"].__class__
    tight = strict(max_abs=0, p99_abs=0, distinct=1, ks=0, calibration=0, auc_drop=0)
    monkeypatch.setitem(pipeline.gates.LIMITS, "fp16", tight)  # type: ignore[arg-type]
    refused, report = accept(package, "fp16", seed=1)
    assert not report.passed
    assert "in service" in report.compared
    assert not refused.record.accepted
    assert refused.record.report["failed"]
    in_service = [plan for plan in plans.found(package.path) if plan.record.accepted]
    assert in_service == [old]


def test_the_version_in_service_of_the_same_model_is_compared_with(
    package: Package, built: FakeBuilder, tmp_path: Path
) -> None:
    accept(package, "fp32")
    files = {name: package.file(name).read_bytes() for name in package.manifest.files}
    newer = write_package(tmp_path / "models", name="criteo", version="2", kind="mlp", files=files)
    found = pipeline.sibling_in_service(newer)
    assert found is not None
    assert found.path == package.path
    assert pipeline.sibling_in_service(package) is None
    made = Options(precision="fp16", batches=(8,))
    _, report = pipeline.accept(newer, made, rows(newer), serving=found, sittings=1, gate_rows=50)
    assert set(report.compared) == {"fp32", "in service"}


def test_every_bucket_of_a_candidate_is_judged_whatever_the_other_plans_have(
    package: Package, built: FakeBuilder
) -> None:
    for precision, batches in (("fp32", (8,)), ("fp16", (1, 8, 32))):
        options = Options(precision=precision, batches=batches)  # type: ignore[arg-type]
        _, report = pipeline.accept(package, options, rows(package), sittings=1, gate_rows=100)
        assert report.passed, report.failed
    assert [*report.measured.parity] == [1, 8, 32]
    assert {name: [*one.speed] for name, one in report.compared.items()} == {
        "fp32": [1, 8, 32],
        "in service": [1, 8, 32],
    }
    assert built.built == ["fp32", "fp16", "fp32"]


def test_compare_shows_all_plans_and_changes_none(package: Package, built: FakeBuilder) -> None:
    for precision in ("fp32", "fp16", "int8"):
        pipeline.build(package, Options(precision=precision, batches=(8,)), rows(package))  # type: ignore[arg-type]
    before = plans.found(package.path)
    reports = pipeline.compare(package, rows(package), sittings=1, gate_rows=100)
    assert [*reports] == ["fp32", "fp16", "int8"]
    exact, half, int8 = (reports[name].measured.parity[8].max_abs for name in reports)
    assert exact < 1e-6 < half < int8
    assert plans.found(package.path) == before


def test_no_plan_to_compare_names_the_remedy(package: Package, built: FakeBuilder) -> None:
    with pytest.raises(LoadError, match=r"no plan for TensorRT 10\.6\.0 on compute capability .*engine build"):
        pipeline.compare(package, rows(package))


def test_plans_without_a_common_batch_size_cannot_be_compared(package: Package, built: FakeBuilder) -> None:
    pipeline.build(package, Options(precision="fp32", batches=(8,)), None)
    pipeline.build(package, Options(precision="tf32", batches=(4,)), None)
    with pytest.raises(LoadError, match="no batch size in common"):
        pipeline.compare(package, rows(package))


def test_sequence_buckets_are_built_with_free_axes(built: FakeBuilder, tmp_path: Path) -> None:
    package = tiny_package(tmp_path / "models", "ad", "din", name="ad")
    plan, report = pipeline.accept(
        package, Options(precision="fp16", batches=(4, 16), lengths=(8,)), rows(package), sittings=1, gate_rows=64
    )
    assert report.passed, report.failed
    assert [(p.batch, p.sequence) for p in plan.record.profiles] == [(4, 8), (4, 50), (16, 8), (16, 50)]
    shape = graph.inputs(onnx.load(Path(plan.read().decode())))["hist"][1]
    assert shape == (None, None)


def command(*words: object) -> Result:
    return CliRunner().invoke(engine, [str(word) for word in words], standalone_mode=False)


def test_the_command_builds_from_recorded_events_and_prints_the_verdict(
    package: Package, built: FakeBuilder, tmp_path: Path
) -> None:
    out = tmp_path / "report.json"
    arguments = [package.path, "--rows", SAMPLE, "--label", "label", "--batch", 4, "--precision", "fp16", "--json", out]
    done = command("build", *arguments, "--require")
    assert done.exception is None, done.exception
    assert done.return_value == 0, done.output
    assert done.output.startswith("fp16: in service; TensorRT 10.6.0")
    assert "AUC drop" in done.output
    assert json.loads(out.read_text())["measured"]["parity"]["4"]["auc_by"] == "clicks"
    compared = command("compare", package.path, "--rows", SAMPLE, "--require", "fp16")
    assert compared.return_value == 0, compared.output
    assert "fp16: passes all gates" in compared.output


def test_the_command_takes_a_trace_of_a_topics_traffic(package: Package, built: FakeBuilder, tmp_path: Path) -> None:
    path, recorded = tmp_path / "traffic.trace", [*samples.rows(SAMPLE)]
    encode = Encoder(package.spec, "msgpack").encode
    with TraceWriter(path, TraceHead(1, "ads", 1)) as trace:
        for row in recorded:
            trace.write(TraceRecord(0, 2e12, None, encode(row)))
        trace.write(TraceRecord(0, 2e12, None, None))
    refused = command("build", package.path, "--rows", path, "--label", "label")
    assert "leave --label and --user out" in str(refused.exception)
    done = command("build", package.path, "--rows", path, "--batch", 4, "--precision", "fp16", "--require")
    assert (done.exception, done.return_value) == (None, 0), done.output
    [plan] = [plan for plan in plans.found(package.path) if plan.record.precision == "fp16"]
    assert plan.record.recipe["rows"] == len(recorded)


def test_require_makes_a_failed_gate_an_exit_code(
    package: Package, built: FakeBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = [pipeline.gates.Check(gate="ranking", bucket=4, observed=2.0, limit=1.0)]
    monkeypatch.setattr(pipeline.gates, "parity_checks", lambda _: failing)
    arguments = [package.path, "--rows", SAMPLE, "--batch", 4]
    assert command("build", *arguments).return_value == 0
    refused = command("build", *arguments, "--require")
    assert refused.return_value == 1
    assert "FAILED" in refused.output
    assert command("compare", package.path, "--rows", SAMPLE).return_value == 0
    assert command("compare", package.path, "--rows", SAMPLE, "--require", "fp32").return_value == 1
    assert command("compare", package.path, "--rows", SAMPLE, "--require", "int8").return_value == 1


def test_no_figure_of_a_table_is_cut_off(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _print(["batch", "", "fp32", "in service"], [["", "throughput", "12,345,678", "2,345,678.9"]])
    printed = capsys.readouterr().out
    assert sorted(filter(str.isdigit, printed.replace("fp32", ""))) == sorted("12345678" + "23456789")
