from pathlib import Path

import pytest

from schemas.fit import Fit, fit
from schemas.spec import ModelSpec, builtin
from tests.schemas.events import SHOP

DATA = Path(__file__).parent.parent / "data"
SPEC = ModelSpec.parse(
    b"""
    event = "custom"
    key = "id"
    time = "at"
    features = [
        { name = "age", default = 30.0 },
        { name = "cost", field = "price" },
        { name = "city", buckets = 10 },
        { name = "plan", buckets = 10, required = true },
    ]
    """,
    "spec.toml",
)


def write(folder: Path, text: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_all_fields_and_nothing_else(name: str, tmp_path: Path) -> None:
    csv, jsonl = "age,price,city,plan\n1,2,3,4\n", '{"age": 1, "price": 2, "city": 3, "plan": 4}\n'
    assert fit(SPEC, write(tmp_path, csv if name == "rows.csv" else jsonl, name)) == Fit("", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "id,at,colour\n1,2,3\n",
            "has none of the model's fields: age, price, city, plan are missing, its columns are id, at, colour;"
            " give the model of these rows, or rename the columns",
        ),
        (
            "id,age\n1,2\n",
            "price, plan: missing, and the spec has no default; its columns are id, age; add them",
        ),
        ("age,price\n", "no rows; give a CSV file with a header and rows, or JSONL"),
        ("", "no rows; give a CSV file with a header and rows, or JSONL"),
    ],
)
def test_rows_that_are_no_events_of_the_spec(text: str, problem: str, tmp_path: Path) -> None:
    assert fit(SPEC, write(tmp_path, text)) == Fit(problem, "")


def test_a_spec_of_nothing_but_defaults_still_needs_one_of_its_fields(tmp_path: Path) -> None:
    path = write(tmp_path, '{"i1": 1}\n{"i2": 2, "i1": 3}\n', "rows.jsonl")
    first = "I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12 and 27 more"
    assert fit(builtin("criteo"), path).problem == (
        f"has none of the model's fields: {first} are missing, its columns are i1, i2; give the model of these rows,"
        " or rename the columns"
    )


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("price,plan\n1,2\n", "age, city: missing, the default is taken"),
        ("age,price,city,plan,a,b\n1,2,3,4,5,6\n", "a, b: not in the spec, left out"),
        (
            "price,plan,label\n1,2,0\n,2,0\n",
            "age, city: missing, the default is taken; price (in 1 of 2 rows): no default, rows without are refused;"
            " label: not in the spec, left out",
        ),
    ],
)
def test_what_is_odd_is_one_line(text: str, warning: str, tmp_path: Path) -> None:
    assert fit(SPEC, write(tmp_path, text)) == Fit("", warning)


def test_empty_cells_of_a_field_with_default_are_as_they_should_be(tmp_path: Path) -> None:
    assert fit(SPEC, write(tmp_path, "age,price,city,plan\n,1,,2\n")) == Fit("", "")


def test_lines_of_json_together_have_the_columns(tmp_path: Path) -> None:
    path = write(tmp_path, '{"age": 1, "price": 2, "plan": "x"}\n{"city": 3, "price": null, "plan": 0}\n', "r.jsonl")
    assert fit(SPEC, path) == Fit("", "price (in 1 of 2 rows): no default, rows without are refused")


def test_a_column_that_the_caller_reads_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, "age,price,city,plan,label,a\n1,2,3,4,0,5\n")
    assert fit(SPEC, path, others=["label"]).warning == "a: not in the spec, left out"


@pytest.mark.parametrize(
    ("name", "file", "warning"),
    [
        ("criteo", "criteo_sample.txt", "label: not in the spec, left out"),
        ("avazu", "avazu_sample.txt", "click: not in the spec, left out"),
        ("alimama", "alimama_sample.csv", "match_mask, target: not in the spec, left out"),
    ],
)
def test_the_public_samples(name: str, file: str, warning: str) -> None:
    found = fit(builtin(name), DATA / file)
    assert found.problem == ""
    assert sorted(found.warning.partition(":")[0].split(", ")) == warning.partition(":")[0].split(", ")


def test_an_own_event_needs_all_but_its_deadline(tmp_path: Path) -> None:
    columns = "event_id,room_id,streamer_id,viewer_id,gift_id,gift_count,price,combo,time_ms,features"
    row = "a,1,2,3,4,5,6,7,8,AAAA"
    assert fit(builtin("tipping"), write(tmp_path, f"{columns}\n{row}\n")) == Fit("", "")
    problem = fit(builtin("tipping"), write(tmp_path, "price,combo\n1,2\n")).problem
    assert problem.startswith("event_id, gift_count, time_ms, features: missing, and the spec has no default; ")


def test_key_time_and_deadline_may_be_absent(tmp_path: Path) -> None:
    fields = dict.fromkeys(feature.field for feature in SHOP.features)
    assert fit(SHOP, write(tmp_path, f"{','.join(fields)}\n{','.join('1' for _ in fields)}\n")) == Fit("", "")
