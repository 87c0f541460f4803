"""Which recorded rows calibrate a model: rarely seen users are not lost among active ones."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engines.build import calibration
from engines.build.calibration import Rowset
from engines.errors import LoadError
from engines.train.streams import Labelled, ads, tips
from schemas.encoder import Encoder
from schemas.spec import ModelSpec, builtin
from schemas.wire import Format

SPEC = b"""
event = "custom"
key = "request"
features = [
    { name = "age", tensor = "dense", min = 0.0, max = 130.0 },
    { name = "country", tensor = "ids", vocabulary = ["de", "fr"] },
]
"""


FORMATS: tuple[Format, ...] = ("json", "msgpack")


def rowset(users: list[str | None]) -> Rowset:
    n = len(users)
    return Rowset({"x": np.arange(n, dtype=np.float32).reshape(n, 1)}, np.zeros(n, np.float32), users)


def test_activity_counts_each_users_rows_and_strangers_once() -> None:
    assert calibration.activity(["a", "b", "a", None, None, "a"]).tolist() == [3, 1, 3, 1, 1, 3]


def test_rare_users_get_their_share_beside_one_who_sends_nearly_everything() -> None:
    users: list[str | None] = ["whale"] * 9_000 + [f"rare{i}" for i in range(600)] + ["mid"] * 10 + ["mid2"] * 10
    order = np.random.default_rng(0).permutation(len(users))
    rows = rowset([users[i] for i in order])
    chosen, shares = calibration.stratified(rows, 600)
    # 20 regular rows are all there are; what they lack is split between the other two.
    assert shares == {"rare": 290, "regular": 20, "active": 290}
    assert len(chosen) == 600
    assert sum(str(user).startswith("rare") for user in chosen.users) == 290


def test_rows_keep_their_order_labels_and_users() -> None:
    rows = rowset([f"u{i}" for i in range(50)])
    chosen, _ = calibration.stratified(rows, 20)
    position = chosen.features["x"][:, 0].astype(int).tolist()
    assert position == sorted(set(position))
    assert list(chosen.users) == [f"u{i}" for i in position]


def test_the_same_seed_draws_the_same_rows_and_another_seed_others() -> None:
    rows = rowset([f"u{i}" for i in range(500)])
    first, again, other = (calibration.stratified(rows, 50, seed)[0].features["x"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("want", [0, 3, 7])
def test_never_more_rows_than_wanted_or_there(want: int) -> None:
    chosen, shares = calibration.stratified(rowset(["a", "a", "b", None, None]), want)
    assert len(chosen) == sum(shares.values()) == min(want, 5)


def test_recorded_events_become_rows_as_live_ones_do_and_bad_ones_are_left_out(tmp_path: Path) -> None:
    spec = ModelSpec.parse(SPEC, "spec")
    events = [
        {"request": "r1", "age": 20.0, "country": "de", "clicked": 1, "who": 7},
        {"request": "r2", "age": 500.0, "country": "de", "clicked": 0, "who": 8},
        {"request": "r3", "age": 30.0, "country": "xx", "clicked": 0, "who": 7},
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    rows = calibration.read(spec, path, label="clicked", user="who")
    assert rows.features["dense"].tolist() == [[20.0], [30.0]]
    assert rows.features["ids"].tolist() == [[1], [0]]
    assert rows.labels is not None
    assert rows.labels.tolist() == [1.0, 0.0]
    assert list(rows.users) == [7, 7]
    assert list(calibration.read(spec, path).users) == ["r1", "r3"]
    assert calibration.read(spec, path).labels is None


def test_a_recording_longer_than_a_chunk_is_whole(tmp_path: Path) -> None:
    n = calibration.CHUNK + 3
    path = tmp_path / "events.csv"
    path.write_text("request,age,country\n" + "".join(f"r{i},{i % 100},de\n" for i in range(n)))
    rows = calibration.read(ModelSpec.parse(SPEC, "spec"), path)
    assert rows.features["dense"][:, 0].tolist() == [float(i % 100) for i in range(n)]
    assert rows.users[-1] == f"r{n - 1}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("request,age,country,clicked\nr1,20,de,2\n", "column 'clicked': 2 is neither 0 nor 1"),
        ("request,age,country\nr1,20,de\n", "column 'clicked': 'clicked'; every row needs 0 or 1"),
        ("request,age,country,clicked\nr1,-1,de,1\n", "no row of this file fits the model's spec .*age"),
        ("request,age,country,clicked\n", "no rows; give a CSV file"),
        (
            "request,clicked\nr1,1\n",
            "has none of the model's fields: age, country are missing, its columns are request",
        ),
        ("request,age,country,clicked\nr1,old,de,1\n", "no row of this file fits the model's spec .*age: 'old' cannot"),
        ("request,age\nr1\n", "cannot be read as recorded events: .*line 2"),
    ],
)
def test_a_recording_that_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "events.csv"
    path.write_text(text)
    with pytest.raises(LoadError, match=said) as error:
        calibration.read(ModelSpec.parse(SPEC, "spec"), path, label="clicked")
    assert str(path) in str(error.value)


@pytest.mark.parametrize("format", FORMATS)
def test_a_topics_own_events_are_rows_by_their_keys_whichever_format_they_have(format: Format) -> None:
    spec = ModelSpec.parse(SPEC, "spec")
    encode = Encoder(spec, format).encode
    n = calibration.CHUNK + 2
    values = [encode({"request": f"r{i % 7}", "age": float(i % 100), "country": "fr"}) for i in range(n)]
    values[1] = b"broken"
    rows = calibration.recorded(spec, values, Path("traffic.trace"))
    assert rows.features["dense"][:, 0].tolist() == [float(i % 100) for i in range(n) if i != 1]
    assert list(rows.users) == [f"r{i % 7}" for i in range(n) if i != 1]
    assert rows.labels is None
    for none, said in (([], "it has no records"), ([b"broken"], "")):
        with pytest.raises(LoadError, match=rf"traffic.trace: no event of this trace fits .*{said}"):
            calibration.recorded(spec, none, Path("traffic.trace"))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("event", "stream", "user"), [("tipping", tips, "viewer_id"), ("ad", ads, "user_id")])
def test_the_user_of_a_built_in_event_is_its_viewer_or_user_in_a_trace_as_in_a_file(
    tmp_path: Path, event: str, stream: Callable[[int], Iterator[Labelled]], user: str, format: Format
) -> None:
    spec = builtin(event)
    events = [fields for fields, _ in stream(40)]
    traced = calibration.recorded(spec, list(map(Encoder(spec, format).encode, events)), tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(fields) + b"\n" for fields in events))
    read = calibration.read(spec, path)
    assert traced.users == read.users == [fields[user] for fields in events]
    for name in traced.features:
        assert np.array_equal(traced.features[name], read.features[name])


def test_what_cannot_be_scored_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = ModelSpec.parse(SPEC, "spec")
    path = tmp_path / "events.csv"
    path.write_text("request,age,country\nr1,20,de\nr2,500,de\nr3,600,de\nr4,old,de\n")
    assert len(calibration.read(spec, path)) == 1
    value = Encoder(spec, "json").encode({"request": "r1", "age": 20.0, "country": "de"})
    calibration.recorded(spec, [value, b"{"], tmp_path / "traffic.trace")
    calibration.recorded(spec, [value], tmp_path / "whole.trace")
    first, second = caplog.messages
    assert first.startswith(f"{path}: 3 of 4 records cannot be scored and are left out, such as: ")
    assert second.startswith(
        f"{tmp_path / 'traffic.trace'}: 1 of 2 records cannot be scored and are left out, such as: "
    )


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("layout", ["map", "array"])
def test_the_format_of_recorded_events_is_that_of_most_whatever_the_first_is(layout: str, format: Format) -> None:
    spec = ModelSpec.parse(SPEC + f'layout = "{layout}"'.encode(), "spec")
    encode = Encoder(spec, format).encode
    values = [encode({"request": f"r{age}", "age": age, "country": "de"}) for age in (20, 30)]
    if format == "json":
        values = [b"\n " + value for value in values]
    for garbage in (b"{", b"\x80"):
        found = calibration.recorded(spec, [garbage, *values], Path("traffic.trace"))
        assert (found.users, found.features["dense"][:, 0].tolist()) == (["r20", "r30"], [20.0, 30.0])
