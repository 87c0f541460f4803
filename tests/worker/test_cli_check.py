"""`scorelane check`: what it finds beside the configuration's own values, and what it shows."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from engines import load, plans
from engines.base import Engine
from engines.errors import LoadError
from engines.package import Package, write_package
from schemas.spec import ModelSpec, builtin
from tests.engines.test_plans import put, record
from tests.models import tiny_package
from tests.worker.test_cli import scorelane, write_config
from worker import preflight
from worker.cli import cli
from worker.cli.demo.worker_process import to_toml
from worker.config import Config
from worker.preflight import check_files, check_topics

SEGMENT = {"name": "whales", "model": "models/whales", "tensor": "ids", "column": 2, "values": [1, 4]}
"""Column 2 of the tipping model's ids is the viewer, in 5000 buckets."""


@pytest.fixture(autouse=True)
def models(tmp_path: Path) -> Path:
    """Models whose engines load, without a base rate."""
    for name, spec in (("tipping", "tipping"), ("whales", "tipping"), ("ads", "ad")):
        package(tmp_path, name, builtin(spec))
    return tmp_path / "models"


def package(folder: Path, name: str, spec: ModelSpec, **changed: bytes) -> Package:
    """models/<name>/1 of real files, but for those `changed` (`light_npz=b"..."`)."""
    made = tiny_package(folder / f"made-{name}", spec)
    files = {file: made.file(file).read_bytes() for file in made.manifest.files}
    files |= {file.replace("_", "."): data for file, data in changed.items()}
    return write_package(folder / "models", name=name, version="1", kind="mlp", files=files)


def check(tmp_path: Path, segment: dict[str, object] | None = None, more: str = "") -> list[str]:
    """The problems, without the file's name."""
    path = config_file(tmp_path, segment, more)
    found = check_files(Config.load(path, {}), "w.toml").problems
    return [str(problem).replace(f"{tmp_path}/", "").removeprefix("w.toml: ") for problem in found]


def config_file(tmp_path: Path, segment: dict[str, object] | None = None, more: str = "", **topic: object) -> Path:
    path = write_config(tmp_path, **topic)
    inner = "" if segment is None else to_toml({"topics.segments": [segment]})
    path.write_text(path.read_text() + inner + more)
    return path


def test_the_table_shows_chain_class_late_policy_and_segments(tmp_path: Path) -> None:
    classes = '\n[[classes]]\nname = "L1"\nweight = 4\n\n[[classes]]\nname = "L2"\nquota = 50\nshed = "skip"\n'
    policies = {"service_class": "L2", "late": "dead_letter", "primary_above_ms": 20, "cold_start": "light"}
    ran = scorelane("check", "--config", config_file(tmp_path, SEGMENT, classes, **policies))
    assert (ran.returncode, ran.stderr) == (0, "")
    header, _, row, segment = ran.stdout.strip().splitlines()[:4]
    assert header.split() == [
        "events",
        "model",
        "engines",
        "class",
        "budget",
        "late",
        "batch",
        "scores",
        "dead",
        "letters",
    ]
    for word in ("ort > light (ort above 20 ms, starts cold)", " L2 ", " dead letter ", " 50 ms "):
        assert word in row
    assert segment.split() == ["whales", "(2", "ids", "in", "ids[2])", "whales", "1", "light"]
    assert "class 1 L1: weight 4, 1000 ms, then light\n" in ran.stdout
    assert "class 2 L2: weight 1, 1000 ms, at most 50/s a lane, then skip\n" in ran.stdout


def test_the_table_is_not_cut_at_80_columns_in_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = CliRunner().invoke(cli, ["check", "--config", str(config_file(tmp_path))], catch_exceptions=False)
    (row,) = (line.split() for line in ran.stdout.splitlines() if "tips (msgpack)" in line)
    assert row[-3:] == ["tips.scores", "(msgpack)", "tips.dead"]


def test_a_table_without_any_of_it(tmp_path: Path) -> None:
    ran = scorelane("check", "--config", config_file(tmp_path))
    (row,) = (line for line in ran.stdout.splitlines() if "tips (msgpack)" in line)
    assert " ort > light " in row and " score " in row
    assert "class 1" not in ran.stdout


@pytest.mark.parametrize(("field", "chain"), [("engine", "trt"), ("fallback", ["trt"])])
def test_the_gpus_engine_needs_an_accepted_plan_of_this_model(
    tmp_path: Path, models: Path, field: str, chain: object
) -> None:
    path = config_file(tmp_path, **{field: chain})

    def problem() -> str:
        return " ".join(str(one) for one in check_files(Config.load(path, {}), "w.toml").problems)

    remedy = f"scorelane engine build {models}/tipping/1 --precision fp32 on the GPU machine"
    assert problem() == f"w.toml: topics[tips].{field}: trt: no accepted plan (there are: none); {remedy}"
    root = models / "tipping" / "1"
    put(root, capability="8.6")
    assert "(there are: 1 of another model.onnx); " in problem()
    onnx = Package.open(root).manifest.files["model.onnx"]
    mine = plans.write(root, msgspec.structs.replace(record(b"plan"), onnx_sha256=onnx), b"plan")
    assert "(there are: 1 of another model.onnx, fp16 not judged); " in problem()
    plans.judge(mine, accepted=True, report={})
    assert problem() == ""


def test_an_onnx_model_of_another_spec_is_found_as_the_worker_would(tmp_path: Path) -> None:
    two = ModelSpec.parse(
        b'event = "custom"\nfeatures = [{ name = "a", tensor = "dense" }, { name = "b", tensor = "dense" }]', "s.toml"
    )
    thirteen = ModelSpec.parse(b'event = "custom"\nfeatures = [{ name = "dense", shape = [13] }]', "s.toml")
    onnx = tiny_package(tmp_path / "thirteen", thirteen).file("model.onnx").read_bytes()
    made = package(tmp_path, "misfit", two, model_onnx=onnx)
    path = config_file(tmp_path, model="models/misfit")
    (problem,) = check_files(Config.load(path, {}), "w.toml").problems
    assert (problem.key, problem.value) == ("topics[tips].engine", "ort")
    said = f"{made.path}/model.onnx: input dense has rows [13], the spec says [2]"
    assert (problem.problem, problem.remedy) == (said, "change one")
    with pytest.raises(LoadError) as refused:
        load("ort", made)
    assert str(refused.value) == f"{said}; change one"
    ran = scorelane("check", "--config", path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"scorelane: {path}: topics[tips].engine: ort: {said}; change one\n"


def test_every_engine_of_the_chain_is_loaded(tmp_path: Path) -> None:
    package(tmp_path, "broken", builtin("tipping"), model_onnx=b"onnx", light_npz=b"npz", trees_onnx=b"trees")
    root = f"{tmp_path}/models/broken/1"
    path = config_file(tmp_path, SEGMENT | {"model": "models/broken"}, engine="ort", fallback=["trees", "light"])
    path.write_text(path.read_text().replace('model = "models/tipping"', 'model = "models/broken"'))
    problems = check_files(Config.load(path, {}), "w.toml").problems
    assert [(one.key.removeprefix("topics[tips]."), one.value) for one in problems] == [
        ("engine", "ort"),
        ("fallback", "trees"),
        ("fallback", "light"),
        ("segments[whales].engine", "light"),
    ]
    assert problems[0].problem.startswith(f"{root}/model.onnx: not loadable: ")
    assert problems[1].problem.startswith(f"{root}/trees.onnx: not loadable: ")
    assert problems[2].problem.startswith(f"{root}/light.npz: not a light model: ")
    assert problems[2].remedy == "train the model again"


def test_an_engine_of_two_topics_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[str, int]] = []

    def counted(kind: str, package: Package, **options: int) -> Engine:
        loaded.append((kind, options["max_batch"]))
        return load(kind, package, **options)

    monkeypatch.setattr(preflight, "load", counted)
    more = '\n[[topics]]\nname = "two"\nmodel = "models/tipping"\n'
    assert check(tmp_path, more=more) == []
    assert loaded == [("ort", 256), ("light", 256)]


def test_a_segments_package_is_opened(tmp_path: Path, models: Path) -> None:
    (models / "whales/1/light.npz").write_bytes(b"damaged")
    (line,) = check(tmp_path, SEGMENT)
    assert line.startswith("topics[tips].segments[whales].model: models/whales: ")
    assert "sha256" in line


def test_a_segments_engine_is_in_its_package(tmp_path: Path) -> None:
    assert check(tmp_path, SEGMENT | {"engine": "trees"}) == [
        "topics[tips].segments[whales].engine: trees: the package whales 1 has no trees.onnx; use one of ort, light,"
        " trt, or train the model with it"
    ]


def test_the_constant_engine_needs_a_base_rate(tmp_path: Path) -> None:
    path = config_file(tmp_path, fallback=["constant"])
    (problem,) = check_files(Config.load(path, {}), "w.toml").problems
    assert str(problem) == (
        "w.toml: topics[tips].fallback: constant: the package tipping 1 has no metric base_rate; use one of ort,"
        " light, trt, or train the model with it"
    )


def test_a_package_with_a_base_rate_offers_the_constant_engine(tmp_path: Path) -> None:
    made = tiny_package(tmp_path / "made", "tipping")
    files = {name: made.file(name).read_bytes() for name in ("spec.toml", "model.onnx")}
    write_package(tmp_path / "models", name="tipping", version="2", kind="mlp", files=files, metrics={"base_rate": 0.1})
    (problem,) = check_files(Config.load(config_file(tmp_path), {}), "w.toml").problems
    assert problem.remedy == "use one of ort, trt, constant, or train the model with it"


def test_a_segments_model_has_the_same_inputs(tmp_path: Path) -> None:
    (line,) = check(tmp_path, SEGMENT | {"model": "models/ads"})
    assert line.startswith("topics[tips].segments[whales].model: models/ads: its inputs are dense float32[13], ")
    assert line.endswith("train it with the topic's spec: both are fed the same")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"tensor": "idz"},
            "tensor: idz[2]: the model has no such integer column; it has dense float32[35], ids int32[4]",
        ),
        ({"column": 4}, "tensor: ids[4]: the model has no such integer column; it has dense float32[35], ids int32[4]"),
        ({"tensor": "dense"}, "tensor: dense[2]: the model has no such integer column; it has dense float32[35], ids"),
        (
            {"values": [4, 5000, -1]},
            "values: 5000, -1: never occur in ids[2] (viewer), whose ids are below 5000; give ids as they are",
        ),
    ],
)
def test_a_segment_is_chosen_by_a_category_of_the_model(
    tmp_path: Path, changed: dict[str, object], expected: str
) -> None:
    (line,) = check(tmp_path, SEGMENT | changed)
    assert line.startswith(f"topics[tips].segments[whales].{expected}")


def test_the_webhooks_token_is_read(tmp_path: Path) -> None:
    webhook = '\n[alarms]\nwebhook_token_file = "token"\n'
    assert check(tmp_path, None, webhook) == [
        "alarms.webhook_token_file: token: No such file or directory; name a file that this user can read"
    ]
    (tmp_path / "token").write_text("\n")
    assert check(tmp_path, None, webhook) == [
        "alarms.webhook_token_file: token: the file is empty; write the token into it"
    ]
    (tmp_path / "token").write_text("secret\n")
    assert check(tmp_path, None, webhook) == []


def test_the_alarm_topic_is_looked_for(tmp_path: Path) -> None:
    config = Config.load(config_file(tmp_path, None, '\n[alarms]\ntopic = "alarms"\n'), {})
    there = {"tips": 2, "tips.scores": 2, "tips.dead": 2}
    assert [str(problem) for problem in check_topics(config, "w.toml", there)] == [
        "w.toml: alarms.topic: alarms: no such topic; create it with `scorelane topics` (1 partition)"
    ]
    assert check_topics(config, "w.toml", there | {"alarms": 1}) == []
