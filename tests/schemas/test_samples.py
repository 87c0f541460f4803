import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from schemas.samples import MAX_CELL, SAMPLES, header, rows

DATA = Path(__file__).parent.parent / "data"


def test_criteo_row_as_text_without_its_empty_cells() -> None:
    all_rows = list(rows(DATA / "criteo_sample.txt"))
    assert len(all_rows) == 200
    first = all_rows[0]
    assert first[SAMPLES["criteo"].label] == "0"
    assert (first["I2"], first["I3"], first["C1"]) == ("3", "260.0", "05db9164")
    assert "I1" not in first and "C26" not in first


def test_avazu_row() -> None:
    all_rows = list(rows(DATA / "avazu_sample.txt"))
    assert len(all_rows) == 100
    assert (all_rows[0]["id"], all_rows[0]["hour"], all_rows[0]["C20"]) == ("1000009418151094273", "14102100", "-1")
    assert {row[SAMPLES["avazu"].label] for row in all_rows} == {"0", "1"}


def test_alimama_sequences_are_lists_without_padding() -> None:
    all_rows = list(rows(DATA / "alimama_sample.csv"))
    assert len(all_rows) == 99
    lengths = [len(row["his_cate"]) for row in all_rows]  # type: ignore[arg-type]
    assert max(lengths) == 50 and 0 < min(lengths) < 50
    assert all(len(row["his_cate"]) == len(row["his_brand"]) == len(row["cont_btag"]) for row in all_rows)  # type: ignore[arg-type]
    assert all_rows[0]["his_cate"][:2] == ["5510", "384"]  # type: ignore[index]
    assert all_rows[1]["his_cate"][-1] == "6423"  # type: ignore[index]
    assert all_rows[0][SAMPLES["alimama"].label] == "0"
    assert "mask" not in all_rows[0]


def test_json_lines_and_their_errors(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1, "b": [1, 2]}\n\n{"a": "x"}\n')
    assert list(rows(path)) == [{"a": 1, "b": [1, 2]}, {"a": "x"}]
    path.write_text('{"a": 1}\n[1]\n')
    with pytest.raises(ValueError, match=r"events.jsonl: line 2: .*one JSON object"):
        list(rows(path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"a": 1, "price": 1e999}', "price: number out of range; correct the value"),
        ('{"a": 1, "seen": [1, {"x": -1e400}]}', "seen: number out of range; correct the value"),
        ('{"a": 1, "b": tru}', "JSON is malformed: invalid character (byte 18); each line must be one JSON object"),
        ('{"a": 1', "Input data was truncated; each line must be one JSON object"),
        ('{"a": ' + "[" * 100_000, "nested too deeply; correct the line"),
    ],
)
def test_the_field_that_cannot_be_read_is_named(line: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"a": 1}\n' * 7 + line + "\n")
    with pytest.raises(ValueError, match=re.escape(f"{path}: line 8: {said}")):
        list(rows(path))


@pytest.mark.parametrize("name", ["pipe.csv", "pipe.jsonl"])
@pytest.mark.parametrize("read", [header, rows])
def test_a_pipe_whose_rows_are_gone_at_the_second_look_is_refused(
    name: str, read: Callable[[Path], Iterable[object]], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=f"{name}: is no regular file"):
        list(read(tmp_path / name))


def test_the_header_of_a_table(tmp_path: Path) -> None:
    assert header(DATA / "avazu_sample.txt")[:4] == ["id", "click", "hour", "C1"]
    alimama = header(DATA / "alimama_sample.csv")
    assert len(alimama) == 21 and alimama.count("his_cate") == 1 and "mask" not in alimama
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n')
    assert header(path) == []


def test_a_csv_line_of_another_length_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n1,2,3\n")
    with pytest.raises(ValueError, match=r"rows.csv: line 3: 3 cells under 2 columns"):
        list(rows(path))


def test_a_cell_may_hold_a_raw_feature_in_base64(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    cell = "QUJD" * (1 << 20)  # 3 MiB of values
    path.write_text(f"id,image\n1,{cell}\n")
    assert list(rows(path)) == [{"id": "1", "image": cell}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n3,%b\n" % (b"x" * (MAX_CELL + 1)), f"line 3: field larger than field limit ({MAX_CELL}); correct"),
        (
            b"a,b\n" + b"1,2\n" * 5000 + b"1,\xff\n" + b"1,2\n" * 5000,
            "line 5002: 'utf-8' codec can't decode byte 0xff in position 2: invalid start byte; write the file",
        ),
    ],
)
def test_what_cannot_be_read_in_a_csv_file_is_named_with_its_line(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    assert header(path) == ["a", "b"]
    with pytest.raises(ValueError, match=re.escape(f"{path}: {said}")):
        list(rows(path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a" * (MAX_CELL + 1), f"line 1: field larger than field limit ({MAX_CELL}); correct the line"),
        (b"a,caf\xe9\n1,2\n", "line 1: 'utf-8' codec can't decode byte 0xe9 in position 5: invalid continuation byte"),
    ],
)
@pytest.mark.parametrize("read", [header, lambda path: list(rows(path))])
def test_a_header_that_cannot_be_read_is_named(
    read: Callable[[Path], object], content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {said}")):
        read(path)
