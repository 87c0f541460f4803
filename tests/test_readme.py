"""What the README shows is what happens: its score, its event, its table of features, its package, its health pages."""

import re
import subprocess
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest

from engines.package import Package
from schemas.decoder import Decoder
from schemas.score import JsonScore
from schemas.spec import ModelSpec
from schemas.tables import Table
from tests.kafka.process import free_port
from tests.models import tiny_package
from tests.test_docs import README, ROOT, fences
from worker.health import Facts, not_live, not_ready


def test_the_score_in_the_readme_has_the_fields_of_a_score() -> None:
    body = fences(README, "json")[0]
    assert msgspec.json.encode(msgspec.json.decode(body, type=JsonScore)) == body.strip().encode()
    table = README.read_text().partition("## Score records")[2]
    named = [name for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert tuple(named) == JsonScore.__struct_fields__


EVENT: dict[str, object] = msgspec.json.decode(fences(README, "json")[1])
GOOD = EVENT | {"profile": bytes(16)}
"""As msgpack has it: blobs are bytes there, base64 in JSON."""
NOTHING = object()


def readme_decoder(format: Literal["msgpack", "json"], directory: Path) -> tuple[ModelSpec, Decoder]:
    """Of the README's spec; row i of its table is i throughout."""
    spec = ModelSpec.parse(next(b for b in fences(README, "toml") if "features" in b).encode(), "README.md")
    np.save(directory / "streamer.npy", np.repeat(np.arange(3, dtype=np.float32)[:, None], 16, axis=1))
    return spec, Decoder(spec, format, tables={"streamer.npy": Table(directory / "streamer.npy", 16)})


def test_the_event_of_the_readme_is_decoded(tmp_path: Path) -> None:
    _, decoder = readme_decoder("json", tmp_path)
    rows = decoder.decode([fences(README, "json")[1].encode()])
    assert not rows.invalid
    assert (rows.keys, rows.event_time_ms.tolist()) == (["r1"], [1796029161719])
    assert {name: tensor.shape for name, tensor in rows.tensors.items()} == {
        **{"dense": (1, 2), "ids": (1, 3), "viewed": (1, 50), "profile": (1, 4), "streamer": (1, 16)},
    }
    assert rows.tensors["dense"].tolist() == [[31.0, 9.5]]
    assert rows.tensors["profile"].tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert rows.tensors["ids"][0, [0, 2]].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("field", "value", "outcome"),
    [
        *(("age", NOTHING, 0.0), ("age", None, 0.0), ("age", 131, "out_of_range"), ("age", "x", "wrong_type")),
        *(("price", NOTHING, "missing_field"), ("price", None, "missing_field"), ("price", "9", "wrong_type")),
        *(("price", float("nan"), "not_finite"), ("price", float("inf"), "not_finite")),
        *(("country", "JP", 3), ("country", NOTHING, 1), ("country", "XX", 0)),
        *(("city", NOTHING, 0), ("city", None, 0), ("city", ["Lyon"], "wrong_type")),
        *(("slot", 7, 7), ("slot", NOTHING, "missing_field"), ("slot", 8, "out_of_range")),
        *(("viewed", ["a"], 0), ("viewed", NOTHING, 0), ("viewed", ["a"] * 51, "wrong_length")),
        *(("profile", bytes(12), "wrong_length"), ("profile", NOTHING, "missing_field")),
        *(("streamer", 2, 2.0), ("streamer", NOTHING, 0.0), ("streamer", 9, 0.0)),
    ],
)
def test_the_feature_table_of_the_readme_says_what_the_decoder_does(
    field: str, value: object, outcome: float | str, tmp_path: Path
) -> None:
    """Among good neighbours, which keep their rows."""
    spec, decoder = readme_decoder("msgpack", tmp_path)
    feature = next(feature for feature in spec.features if feature.name == field)
    event = {k: v for k, v in (GOOD | {feature.field: value}).items() if v is not NOTHING}
    good, changed = msgspec.msgpack.encode(GOOD), msgspec.msgpack.encode(event)
    rows = decoder.decode([good, changed, good])
    if isinstance(outcome, str):
        assert [(position, error.reason) for position, error in rows.invalid] == [(1, outcome)]
        assert len(rows) == 2
        return
    assert not rows.invalid
    column = sum(
        other.size for other in spec.by_tensor[feature.tensor][: spec.by_tensor[feature.tensor].index(feature)]
    )
    last = column if feature.name != "viewed" else 49
    assert rows.tensors[feature.tensor][1, last] == outcome


@pytest.mark.parametrize("document", ["README.md", "docs/models.md", "docs/operations.md"])
@pytest.mark.parametrize("format", ["msgpack", "json"])
def test_a_key_may_be_as_long_as_the_documents_say(
    document: str, format: Literal["msgpack", "json"], tmp_path: Path
) -> None:
    lines = (ROOT / document).read_text().splitlines()
    [longest] = {int(n) for line in lines if "key" in line for n in re.findall(r"(\d+) characters", line)}
    _, decoder = readme_decoder(format, tmp_path)
    event = GOOD if format == "msgpack" else EVENT
    keys: list[str | int] = ["k" * longest, "k" * (longest + 1), 2**63 - 1, 2**63]
    rows = decoder.decode([getattr(msgspec, format).encode(event | {"request_id": key}) for key in keys])
    assert rows.keys == [keys[0], keys[2]]
    assert [(position, error.reason) for position, error in rows.invalid] == [(1, "wrong_length"), (3, "out_of_range")]


def test_the_package_of_the_readme_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_package(tmp_path / "made")
    for file in ("model.onnx", "spec.toml"):
        (tmp_path / file).write_bytes(made.file(file).read_bytes())
    monkeypatch.chdir(tmp_path)
    [code] = fences(README, "python")
    exec(compile(code, "README.md", "exec"), {})
    package = Package.open(tmp_path / "models" / "ctr")
    assert (package.version, package.manifest.metrics["base_rate"]) == ("1", 0.03)


def test_the_wait_for_the_worker_ends_with_the_worker() -> None:
    [wait] = [line for body in fences(README, "bash") for line in body.splitlines() if line.startswith("until ")]
    unanswered = wait.replace("localhost:8080", f"localhost:{free_port()}")
    assert unanswered != wait
    subprocess.run(["bash", "-euo", "pipefail", "-c", f"false &\n{unanswered}"], timeout=60, check=True)


def test_health_answers_as_the_readme_says() -> None:
    draining = Facts(True, True, 0.0, 5, 0.0, 0.0)
    assert not_ready(draining, 1000.0, 60.0, 30.0) and not not_live(draining, 1000.0, 60.0)
    assert not_ready(Facts(True, False, None, 0, 0.0, 0.0), 1.0, 60.0, 30.0)
    unanswered = Facts(True, False, 0.0, 5, 1000.0, 999.0, unacknowledged_s=6.0)
    assert not_ready(unanswered, 1000.0, 60.0, 30.0) and not not_live(unanswered, 1000.0, 60.0)
    stuck = Facts(True, False, 0.0, 5, 1000.0, 0.0)
    assert not_live(stuck, 1000.0, 60.0)
