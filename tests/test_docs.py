"""What the documents say is so: examples load, commands, options, keys, metrics, files and links exist."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest

from engines.build.gates import LIMITS
from engines.extras import Extra, install
from schemas.errors import REASONS
from schemas.spec import FeatureSpec, ModelSpec
from tests.kafka.worker import to_toml
from worker.alarms import AlarmCause
from worker.cli import COMMANDS, cli
from worker.config import Config
from worker.metrics import Metrics

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DOCUMENTS = (README, *sorted((ROOT / "docs").glob("*.md")))
NAMES = [document.name for document in DOCUMENTS]
METRICS = {
    name
    for file in ("worker/metrics.py", "worker/gauges.py")
    for name in re.findall(r'"(scorelane_[a-z_]+)"', (ROOT / file).read_text())
}
SUFFIXES = ("_total", "_bucket", "_count", "_sum")
MINIMUM = {
    "kafka": {"bootstrap_servers": "localhost:9092"},
    "topics": [{"name": "tips", "model": "models/tipping"}],
}

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(document: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(document.read_text()) if kind == language]


def inline(document: Path) -> list[str]:
    """Inline code, a line break in it being a space."""
    text = FENCE.sub("", document.read_text())
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def examples(language: str) -> list[tuple[str, str]]:
    return [(document.name, body) for document in DOCUMENTS for body in fences(document, language)]


@pytest.mark.parametrize(("name", "body"), examples("toml"))
def test_every_toml_example_loads(name: str, body: str, tmp_path: Path) -> None:
    """A spec as it is; a part of a configuration with the two required sections where it leaves them out."""
    table = tomllib.loads(body)
    if "features" in table:
        assert ModelSpec.parse(body.encode(), name).tensors
        return
    file = tmp_path / "worker.toml"
    missing = {key: value for key, value in MINIMUM.items() if key not in table}
    file.write_text(f"{to_toml(missing)}\n{body}")
    assert Config.load(file, {}).topics


# The command line


def invocations() -> Iterator[tuple[str, list[str]]]:
    """Every `scorelane ...` of the documents, in blocks and in the text, without what the shell does."""
    for document in DOCUMENTS:
        lines = [line for body in fences(document, "bash") for line in body.replace("\\\n", " ").splitlines()]
        for line in lines + inline(document):
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
                words.pop(0)
            if words[:1] == ["scorelane"]:
                end = next((i for i, word in enumerate(words) if word in {"|", "&", ">", "&&"}), len(words))
                yield document.name, words[1:end]


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that is named, and the words after its name."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"scorelane has no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts} | {"--help", "--version"}


def every_option() -> set[str]:
    found: set[str] = set()
    pending: list[click.Command] = [resolve([name])[0] for name in COMMANDS]
    while pending:
        command = pending.pop()
        found |= options(command)
        if isinstance(command, click.Group):
            pending += command.commands.values()
    return found


@pytest.mark.parametrize(("name", "words"), list(invocations()), ids=" ".join)
def test_every_command_and_its_options_exist(name: str, words: list[str]) -> None:
    command, rest = resolve(words)
    for word in rest:
        if word.startswith("--"):
            assert word.partition("=")[0] in options(command), f"{name}: scorelane {' '.join(words)}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_options_that_are_named_alone_exist(document: Path) -> None:
    known = every_option()
    named = {word for code in inline(document) if code.startswith("--") for word in code.split()[:1]}
    assert named <= known


def test_every_command_is_documented() -> None:
    text = "".join(document.read_text() for document in DOCUMENTS)
    assert [name for name in COMMANDS if f"scorelane {name}" not in text and f"make {name}" not in text] == []


def test_libraries_are_installed_as_the_readme_says() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(get_args(Extra)) == table.keys() - {"dev"}
    [readme] = re.findall(r"^pip install .*$", README.read_text(), re.MULTILINE)
    assert install("train").startswith(f"{readme} in ")


# Names


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_metric_that_is_named_exists(document: Path) -> None:
    named = set(re.findall(r"\bscorelane_[a-z_]+", document.read_text()))
    assert {name for name in named if without_suffix(name) not in METRICS} == set()


def without_suffix(name: str) -> str:
    return next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)


def test_every_metric_is_in_the_runbook() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert {name for name in METRICS if f"`{name}`" not in text} == set()


def test_every_metric_of_the_process_that_is_named_exists() -> None:
    named = set(re.findall(r"`(process_[a-z_]+)`", (ROOT / "docs" / "operations.md").read_text()))
    exposed = Metrics().exposition().decode()
    assert named and {name for name in named if f"\n{name} " not in exposed} == set()


def test_every_reason_of_a_dead_letter_is_explained() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    assert [reason for reason in REASONS if f"| `{reason}` |" not in text] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_key_of_the_configuration_that_is_named_exists(document: Path) -> None:
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for code in inline(document):
        found = re.fullmatch(r"(kafka|worker|breaker|alarms|admin)\.(?!toml)([a-z_]+)", code)
        if found:
            assert found[2] in {field.name for field in msgspec.structs.fields(sections[found[1]])}, code


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_source_file_that_is_named_exists(document: Path) -> None:
    named = [
        code for code in inline(document) if re.fullmatch(r"(schemas|engines|worker|tests|deploy)(/[\w.-]+)+", code)
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", FENCE.sub("", document.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", file.read_text()), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Tables


def cells(document: str, heading: str) -> list[list[str]]:
    """Cells of the first table after a line that contains `heading`."""
    text = (ROOT / "docs" / document).read_text().partition(heading)[2]
    table = re.search(r"^\|.*?(?=^[^|])", text, re.MULTILINE | re.DOTALL)
    assert table is not None, heading
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()[2:]]


@pytest.mark.parametrize(("heading", "struct"), [("Top level:", ModelSpec), ("Each feature:", FeatureSpec)])
def test_every_key_of_a_spec_is_in_its_table(heading: str, struct: type[msgspec.Struct]) -> None:
    named = {key for row in cells("models.md", heading) for key in re.findall(r"`(\w+)`", row[0])}
    assert named == set(struct.__struct_fields__)


def test_the_table_of_gates_has_their_limits() -> None:
    table = cells("models.md", "**Gates.**")
    limits = [LIMITS[precision] for precision in ("fp32", "tf32", "fp16", "int8")]
    keys = ("max_abs", "p99_abs", "distinct", "ks", "calibration", "auc_drop", "latency", "throughput")
    assert [[float(cell) for cell in row[1:]] for row in table[1:]] == [
        [getattr(limit, key) for limit in limits] for key in keys
    ]


def test_every_cause_of_an_alarm_is_in_its_table() -> None:
    named = [cause for row in cells("operations.md", "## Alarms") for cause in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(AlarmCause)
