"""Plans in a model package: what is written is what is found, and the wrong plan is never chosen."""

import sys
from pathlib import Path

import msgspec
import pytest

from engines import load, plans
from engines.errors import LoadError
from engines.package import write_package
from engines.plans import Device, PlanFile, PlanRecord, Precision, Profile
from schemas.spec import builtin


def record(
    plan: bytes, *, tensorrt: str = "10.6.0", capability: str = "9.0", precision: Precision = "fp16", created: int = 1
) -> PlanRecord:
    return PlanRecord(
        model="din",
        version="1",
        tensorrt=tensorrt,
        device=Device(name="H200", compute_capability=capability),
        precision=precision,
        profiles=[Profile(batch=32, sequence=50, shapes={"hist": [32, 50]})],
        output="score",
        recipe={"islands": ["mlp"]},
        layers={"fp16": 3},
        onnx_sha256="a" * 64,
        timing_cache_sha256="b" * 64,
        plan_sha256=plans.sha256(plan),
        plan_bytes=len(plan),
        build_s=1.5,
        created_ms=created,
    )


def put(root: Path, plan: bytes = b"plan", *, accepted: bool = True, **fields: object) -> PlanFile:
    written = plans.write(root, record(plan, **fields), plan)  # type: ignore[arg-type]
    return plans.judge(written, accepted=accepted, report={})


def test_a_plan_is_found_with_everything_that_was_recorded(tmp_path: Path) -> None:
    written = plans.write(tmp_path, record(b"plan"), b"plan")
    assert written.path == tmp_path / "plans" / "candidates" / "10.6.0-sm90-fp16.plan"
    assert plans.found(tmp_path) == [written]
    assert written.read() == b"plan"


def test_the_build_the_capability_and_the_precision_must_all_match(tmp_path: Path) -> None:
    here = put(tmp_path)
    put(tmp_path, tensorrt="11.4.0")
    put(tmp_path, capability="8.6")
    put(tmp_path, precision="int8")
    assert plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0", precision="fp16") == here


def test_no_plan_for_this_build_names_build_capability_what_is_there_and_the_remedy(tmp_path: Path) -> None:
    put(tmp_path, tensorrt="11.4.0", capability="8.6")
    with pytest.raises(LoadError) as error:
        plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0")
    assert "TensorRT 10.6.0 on compute capability 9.0 (there are: 11.4.0 on 8.6)" in str(error.value)
    assert "scorelane engine build MODEL" in str(error.value)


def test_without_tensorrt_the_extra_that_brings_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"spec.toml": builtin("tipping").dumps(), "model.onnx": b"onnx"}
    package = write_package(tmp_path, name="m", version="1", kind="mlp", files=files)
    monkeypatch.setitem(sys.modules, "engines.trt", None)  # importing it raises ImportError
    with pytest.raises(LoadError, match=r"engine 'trt': .*; pip install '\.\[gpu\]' in .*, or choose"):
        load("trt", package)


def test_another_precision_is_no_substitute(tmp_path: Path) -> None:
    put(tmp_path, precision="fp16")
    with pytest.raises(LoadError, match=r"no int8 plan .* \(there are: fp16\); build .* --precision int8"):
        plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0", precision="int8")


def test_a_plan_of_another_model_file_is_refused(tmp_path: Path) -> None:
    put(tmp_path)
    with pytest.raises(LoadError, match=r"another model\.onnx"):
        plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0", onnx_sha256="c" * 64)


@pytest.mark.parametrize(("judged", "word"), [(False, "fp16 not judged"), (True, "fp16 rejected")])
def test_a_plan_that_did_not_pass_the_gates_is_served_only_on_request(tmp_path: Path, judged: bool, word: str) -> None:
    plan = put(tmp_path, accepted=False) if judged else plans.write(tmp_path, record(b"plan"), b"plan")
    with pytest.raises(LoadError, match=word):
        plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0")
    assert plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0", accepted=False) == plan


def test_without_a_precision_the_plan_accepted_last_is_in_service(tmp_path: Path) -> None:
    put(tmp_path, precision="int8", created=9)
    last = put(tmp_path, precision="fp16", created=5)
    sidecar = last.path.with_suffix(".json")
    later = msgspec.structs.replace(last.record, judged_ms=last.record.judged_ms + 1)
    sidecar.write_bytes(msgspec.json.encode(later))
    assert plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0").record.precision == "fp16"


def test_a_plan_whose_bytes_changed_is_refused(tmp_path: Path) -> None:
    written = put(tmp_path)
    written.path.write_bytes(b"plaN")
    with pytest.raises(LoadError, match=r"sha256 .* of its sidecar"):
        written.read()
    written.path.unlink()
    with pytest.raises(LoadError, match="No such file"):
        written.read()


def test_the_plan_in_service_stays_until_the_new_one_is_accepted(tmp_path: Path) -> None:
    old = put(tmp_path, b"old")
    new = plans.write(tmp_path, record(b"new", created=2), b"new")
    assert plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0").read() == b"old"
    assert plans.choose(tmp_path, tensorrt="10.6.0", compute_capability="9.0", accepted=False).read() == b"new"
    refused = plans.judge(new, accepted=False, report={"why": "slow"})
    assert plans.found(tmp_path) == [old, refused]
    accepted = plans.judge(refused, accepted=True, report={})
    assert plans.found(tmp_path) == [accepted]
    assert accepted.path == old.path
    assert accepted.read() == b"new"


def test_a_plan_taken_out_of_service_is_a_candidate_again(tmp_path: Path) -> None:
    withdrawn = plans.judge(put(tmp_path), accepted=False, report={})
    assert plans.found(tmp_path) == [withdrawn]
    assert withdrawn.path.parent.name == "candidates"


@pytest.mark.parametrize("text", [b"{", b'{"format": 2}', msgspec.json.encode({"format": 1}), b'{"":' + b"[" * 100_000])
def test_a_broken_sidecar_is_named(tmp_path: Path, text: bytes) -> None:
    sidecar = put(tmp_path).path.with_suffix(".json")
    sidecar.write_bytes(text)
    with pytest.raises(LoadError, match=f"{sidecar.name}.*delete it"):
        plans.found(tmp_path)


def test_a_sidecar_of_a_later_format_is_named(tmp_path: Path) -> None:
    written = put(tmp_path)
    later = msgspec.structs.replace(written.record, format=2)
    written.path.with_suffix(".json").write_bytes(msgspec.json.encode(later))
    with pytest.raises(LoadError, match="format 2, not 1"):
        plans.found(tmp_path)
