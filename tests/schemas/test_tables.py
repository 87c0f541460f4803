"""Static embeddings: an id selects a row of a file that is replaced while it is in use."""

import logging
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.columns import bucket
from schemas.decoder import Decoder
from schemas.encoder import Encoder
from schemas.errors import InvalidSpec
from schemas.rows import Rows
from schemas.spec import ModelSpec
from schemas.tables import CHECK_S, Table, open_tables, write_table

WIDTH = 4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def matrix(rows: int, width: int = WIDTH, first: float = 0.0) -> np.ndarray:
    """Row i is i*10 + column + `first`."""
    return (first + np.arange(rows)[:, np.newaxis] * 10 + np.arange(width)).astype(np.float32)


def spec(feature: str, event: str = 'event = "custom"\nkey = "id"') -> ModelSpec:
    text = f'{event}\nfeatures = [{{ name = "vec", table = "t.npy", shape = [{WIDTH}]{feature and f", {feature}"} }}]'
    return ModelSpec.parse(text.encode(), "spec.toml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_table(tmp_path / "t.npy", matrix(5))
    return tmp_path


def decode(folder: Path, described: ModelSpec, *bodies: object, now: Callable[[], float] = Clock()) -> Rows:  # noqa: B008
    decoder = Decoder(described, "msgpack", tables=open_tables(described, [folder], now))
    return decoder.decode([msgspec.msgpack.encode(body) for body in bodies])


def refused(rows: Rows) -> list[tuple[int, str]]:
    return [(position, error.reason) for position, error in rows.invalid]


# What an id selects


def test_an_integer_selects_its_row(folder: Path) -> None:
    rows = decode(folder, spec('field = "who"'), *({"id": n, "who": who} for n, who in enumerate([4, 0, 2, 4])))
    assert rows.tensors["vec"].dtype == np.float32
    assert rows.tensors["vec"].tolist() == matrix(5)[[4, 0, 2, 4]].tolist()
    assert rows.keys == [0, 1, 2, 3]


def test_an_index_outside_selects_row_0_or_is_refused(folder: Path) -> None:
    bodies = [{"vec": index} for index in (5, 1, -1, 2**40, 3)]
    rows = decode(folder, spec(""), *bodies)
    assert rows.tensors["vec"].tolist() == matrix(5)[[0, 1, 0, 0, 3]].tolist()
    rows = decode(folder, spec('unknown = "refuse"'), *bodies)
    assert rows.tensors["vec"].tolist() == matrix(5)[[1, 3]].tolist()
    assert refused(rows) == [(0, "unknown_value"), (2, "unknown_value"), (3, "unknown_value")]
    assert rows.invalid[0][1].detail == "vec: 5 selects row 5 of t.npy, which has 5"


def test_a_missing_id_takes_the_default_or_is_refused(folder: Path) -> None:
    rows = decode(folder, spec("default = 3"), {}, {"vec": None}, {"vec": 1})
    assert rows.tensors["vec"].tolist() == matrix(5)[[3, 3, 1]].tolist()
    rows = decode(folder, spec('unknown = "zero"'), {}, {"vec": 1})
    assert refused(rows) == [(0, "missing_field")]


def test_a_word_selects_by_the_vocabulary(folder: Path) -> None:
    words = 'vocabulary = ["de", "fr"]'
    rows = decode(folder, spec(words), {"vec": "fr"}, {"vec": "xx"}, {"vec": "de"})
    assert rows.tensors["vec"].tolist() == matrix(5)[[2, 0, 1]].tolist()
    rows = decode(folder, spec(f'{words}, unknown = "refuse"'), {"vec": "fr"}, {"vec": "xx"})
    assert refused(rows) == [(1, "unknown_value")]
    assert rows.tensors["vec"].tolist() == matrix(5)[[2]].tolist()


def test_a_bucket_selects_and_a_missing_value_is_row_0(folder: Path) -> None:
    rows = decode(folder, spec("buckets = 5"), {"vec": "somebody"}, {}, {"vec": 17})
    picked = [bucket("vec", "somebody", 5), 0, bucket("vec", "17", 5)]
    assert rows.tensors["vec"].tolist() == matrix(5)[picked].tolist()


def test_ids_have_their_own_range(folder: Path) -> None:
    rows = decode(folder, spec("ids = 3"), {"vec": 2}, {"vec": 3}, {"vec": "2"})
    assert rows.tensors["vec"].tolist() == matrix(5)[[2]].tolist()
    assert refused(rows) == [(1, "out_of_range"), (2, "wrong_type")]


def test_a_row_that_is_not_finite_is_refused_and_its_neighbours_are_not(folder: Path) -> None:
    spoilt = matrix(5)
    spoilt[1, 2], spoilt[3, 0], spoilt[3, 1] = np.nan, np.inf, -np.inf
    write_table(folder / "t.npy", spoilt)
    rows = decode(folder, spec(""), *({"vec": index} for index in range(5)))
    assert rows.tensors["vec"].tolist() == matrix(5)[[0, 2, 4]].tolist()
    assert refused(rows) == [(1, "not_finite"), (3, "not_finite")]
    assert rows.invalid[0][1].detail == "vec: row 1 of t.npy is not finite"


def test_rows_join_other_features_in_a_tensor_and_one_field_feeds_two(folder: Path) -> None:
    described = ModelSpec.parse(
        f"""
event = "custom"
features = [
    {{ name = "age", tensor = "dense" }},
    {{ name = "vec", field = "who", tensor = "dense", table = "t.npy", shape = [{WIDTH}], buckets = 5 }},
    {{ name = "who", buckets = 5 }},
]
""".encode(),
        "spec.toml",
    )
    assert [(tensor.name, tensor.dtype, tensor.shape) for tensor in described.tensors] == [
        ("dense", "float32", (1 + WIDTH,)),
        ("who", "int32", (1,)),
    ]
    rows = decode(folder, described, {"age": 7.5, "who": "a"}, {"age": 1.0})
    index = bucket("vec", "a", 5)
    assert rows.tensors["dense"].tolist() == [[7.5, *matrix(5)[index]], [1.0, *matrix(5)[0]]]
    assert rows.tensors["who"].tolist() == [[bucket("who", "a", 5)], [0]]


def test_a_built_in_event_selects_by_one_of_its_ids(folder: Path) -> None:
    described = spec('field = "gift_id", unknown = "refuse"', 'event = "tipping"')
    encoder = Encoder(described, "msgpack")
    event = {"event_id": "e", "room_id": 1, "streamer_id": 2, "viewer_id": 3, "gift_count": 1, "price": 1.0, "combo": 1}
    values = [encoder.encode({**event, "gift_id": gift, "time_ms": 5, "features": b""}) for gift in ("4", 7)]
    rows = Decoder(described, "msgpack", tables=open_tables(described, [folder])).decode(values)
    assert rows.tensors["vec"].tolist() == matrix(5)[[4]].tolist()
    assert refused(rows) == [(1, "unknown_value")]


@settings(max_examples=50)
@given(st.lists(st.integers(-3, 9) | st.none() | st.just("text"), max_size=700))
def test_every_event_has_the_row_of_its_own_id(tmp_path_factory: pytest.TempPathFactory, ids: list[object]) -> None:
    folder = tmp_path_factory.mktemp("tables")
    write_table(folder / "t.npy", matrix(7))
    rows = decode(folder, spec('unknown = "refuse"'), *({"vec": index} for index in ids))
    good = [position for position, index in enumerate(ids) if isinstance(index, int) and 0 <= index < 7]
    assert rows.positions.tolist() == good
    assert rows.tensors["vec"].tolist() == [matrix(7)[ids[position]].tolist() for position in good]  # type: ignore[index]
    assert len(rows.invalid) == len(ids) - len(good)


# The file


def test_a_replaced_file_is_read_after_a_second_and_not_before(folder: Path) -> None:
    clock = Clock()
    table = Table(folder / "t.npy", WIDTH, clock)
    before = table.rows()
    write_table(folder / "t.npy", matrix(3, first=100))
    clock.now += CHECK_S - 0.001
    assert table.rows() is before
    clock.now += 0.001
    after = table.rows()
    assert after.tolist() == matrix(3, first=100).tolist()
    assert before.tolist() == matrix(5).tolist(), "who still holds the old rows may use them"
    clock.now += 10
    assert table.rows() is after, "nothing new"


def test_a_decoder_goes_on_with_new_rows(folder: Path) -> None:
    clock, described = Clock(), spec("")
    decoder = Decoder(described, "msgpack", tables=open_tables(described, [folder], clock))
    value = msgspec.msgpack.encode({"vec": 4})
    assert decoder.decode([value]).tensors["vec"].tolist() == matrix(5)[[4]].tolist()
    write_table(folder / "t.npy", matrix(9, first=100))
    clock.now += 2
    assert decoder.decode([value]).tensors["vec"].tolist() == matrix(9, first=100)[[4]].tolist()
    write_table(folder / "t.npy", matrix(2))
    clock.now += 2
    assert decoder.decode([value]).tensors["vec"].tolist() == matrix(2)[[0]].tolist(), "shorter: row 4 is gone"


def test_a_file_of_the_same_size_and_time_is_known_by_its_inode(folder: Path) -> None:
    clock, path = Clock(), folder / "t.npy"
    table = Table(path, WIDTH, clock)
    stamp = path.stat().st_mtime_ns
    write_table(path, matrix(5, first=100))
    os.utime(path, ns=(stamp, stamp))
    clock.now += 1
    assert table.rows()[0, 0] == 100.0


def _save(array: np.ndarray) -> Callable[[Path], None]:
    return lambda path: np.save(path, array)


def _archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=matrix(5))


def _described(header: str) -> Callable[[Path], object]:
    """A file with this text where its dtype, order and shape should stand, and many zeros."""
    padded = header.encode().ljust(117) + b"\n"
    return lambda path: path.write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + bytes(128))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no array": (lambda path: path.write_bytes(b"nonsense"), "cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be read"),
    "cut short": (lambda path: path.write_bytes(_whole()[:-4]), "cannot be read"),
    "another width": (_save(matrix(5, 3)), r"its rows have 3 columns, the feature's shape is \[4\]"),
    "another dtype": (_save(matrix(5).astype(np.float64)), r"holds float64\[5, 4\]; write a float32 matrix"),
    "another rank": (_save(np.zeros(4, np.float32)), r"holds float32\[4\]"),
    "columns first": (_save(np.asfortranarray(matrix(5))), r"in C order"),
    "objects": (_save(np.array([{}], dtype=object)), "cannot be read"),
    "an archive": (_archive, "cannot be read"),
    "no rows": (_save(matrix(0)), r"holds float32\[0, 4\]"),
    "gone": (lambda path: None, "cannot be read"),
    "a pipe": (os.mkfifo, r"cannot be read \(ValueError: no regular file\)"),
    "quotes in the header": (
        lambda path: path.write_bytes(_whole()[:12] + b"'" * 8 + _whole()[20:]),
        r"cannot be read \(TokenError: .*\); write it with write_table",
    ),
    "a header without end": (_described("(" * 100), r"cannot be read \(\w+: "),
    "a header of several lines": (_described(" x\n  y\n z"), r"cannot be read \(\w+: "),
    "a huge shape": (
        _described("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000000000000000000000, 4), }"),
        r"cannot be read \(OverflowError: ",
    ),
    "a shape of a truth": (
        _described("{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4), }"),
        r"cannot be read \(TypeError: ",
    ),
    "an endless header": (_described(" " * 20_000), r"cannot be read \(ValueError: "),
}


def _whole() -> bytes:
    from io import BytesIO

    buffer = BytesIO()
    np.save(buffer, matrix(5))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_refused_at_the_start(folder: Path, kind: str) -> None:
    path = folder / "t.npy"
    path.unlink()
    BROKEN[kind][0](path)
    with pytest.raises(InvalidSpec, match=rf"t\.npy: table: .*{BROKEN[kind][1]}") as caught:
        Table(path, WIDTH)
    assert "\n" not in str(caught.value)


def test_whatever_is_damaged_is_refused_or_still_a_matrix(folder: Path) -> None:
    whole, path, chance = _whole(), folder / "t.npy", random.Random(1)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(whole[: chance.choice([len(whole), chance.randrange(len(whole))])])
        for _ in range(chance.choice([0, 1, 2, 5])):
            place = chance.randrange(len(damaged) or 1)
            damaged[place : place + 1] = bytes([chance.choice([0, 10, 32, 39, 40, 41, 44, 92, 123, 255])])
        path.unlink()
        path.write_bytes(damaged)
        try:
            rows = Table(path, WIDTH).rows()
        except InvalidSpec:
            refused += 1
        else:
            assert (rows.dtype, rows.shape[1:]) == (np.float32, (WIDTH,))
    assert 1000 < refused < 3000


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_new_file_is_logged_once_and_the_old_rows_stay(
    folder: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), folder / "t.npy"
    table = Table(path, WIDTH, clock)
    path.unlink()  # as a rename does: the mapped file lives on
    BROKEN[kind][0](path)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            clock.now += 1
            assert table.rows().tolist() == matrix(5).tolist()
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "the rows read before stay in use" in caplog.text
        write_table(path, matrix(6, first=1))
        clock.now += 1
        assert table.rows().tolist() == matrix(6, first=1).tolist(), "a whole one is read again"


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open no file meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_could_not_be_opened_is_tried_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, path = Clock(), folder / "t.npy"
    table = Table(path, WIDTH, clock)
    for first in (100, 200):
        write_table(path, matrix(3, first=first))
        before = table.rows()
        with no_descriptors():
            for _ in range(3):
                clock.now += 1
                assert table.rows() is before
        clock.now += 1
        assert table.rows().tolist() == matrix(3, first=first).tolist()
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"], "once for each new file"
    assert "Too many open files" in caplog.text


def test_a_file_that_goes_and_comes_back_is_the_one_that_was_read(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, path = Clock(), folder / "t.npy"
    table = Table(path, WIDTH, clock)
    rows = table.rows()
    for _ in range(2):
        path.rename(folder / "away.npy")
        clock.now += 1
        assert table.rows() is rows
        (folder / "away.npy").rename(path)
        clock.now += 1
        assert table.rows() is rows
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"], "once for each time that it is gone"


def test_rows_cannot_be_written(folder: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Table(folder / "t.npy", WIDTH).rows()[0, 0] = 1.0


def test_writing_leaves_no_partial_file(folder: Path) -> None:
    with pytest.raises(IsADirectoryError):
        (folder / "d").mkdir()
        write_table(folder / "d", matrix(1))
    assert sorted(path.name for path in folder.iterdir()) == ["d", "t.npy"]


def test_the_first_directory_that_has_the_file_is_taken(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    inner = tmp_path_factory.mktemp("version")
    assert open_tables(spec(""), [inner, folder])["t.npy"].rows()[0, 0] == 0.0
    write_table(inner / "t.npy", matrix(2, first=7))
    assert open_tables(spec(""), [inner, folder])["t.npy"].rows()[0, 0] == 7.0
    with pytest.raises(InvalidSpec, match=r"features\.vec\.table: not in /nowhere; put it there"):
        open_tables(spec(""), [Path("/nowhere")])


def test_a_decoder_without_its_tables_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"features\.vec\.table: t\.npy is not open"):
        Decoder(spec(""), "msgpack")


# The spec


def test_a_table_feature_is_numbers_to_the_model_and_survives_being_written(folder: Path) -> None:
    described = spec("buckets = 5")
    (feature,) = described.features
    assert (feature.dtype, feature.is_category, feature.cardinality) == ("float32", False, None)
    assert (feature.read.dtype, feature.read.is_category, feature.read.cardinality) == ("int64", True, 5)
    assert [(tensor.dtype, tensor.shape) for tensor in described.tensors] == [("float32", (WIDTH,))]
    assert ModelSpec.parse(described.dumps(), "again") == described


@pytest.mark.parametrize(
    ("feature", "key", "remedy"),
    [
        ('table = "../t.npy", shape = [4]', "table", "put the file into the model's directory"),
        ('table = "t.bin", shape = [4]', "table", "put the file into the model's directory"),
        ('table = "t.npy"', "shape", "give one size"),
        ('table = "t.npy", shape = [2, 2]', "shape", "give one size"),
        ('table = "t.npy", shape = [0]', "shape", "give one size"),
        ('table = "t.npy", shape = [4], dtype = "int32"', "dtype", "remove it"),
        ('table = "t.npy", shape = [4], encoding = "raw"', "encoding", "remove it"),
        ('table = "t.npy", shape = [4], pad = true', "pad", "remove it"),
        ('table = "t.npy", shape = [4], min = 0', "min", "remove it"),
        ('table = "t.npy", shape = [4], max = 9', "max", "remove it"),
        ('table = "t.npy", shape = [4], ids = 3, buckets = 3', "ids", "keep one of"),
        ('table = "t.npy", shape = [4], ids = 3, default = 3', "default", "a default that the feature itself accepts"),
        ('table = "t.npy", shape = [4], default = [1, 2, 3, 4]', "default", "give one value"),
        ('table = "t.npy", shape = [4], default = 1.5', "default", "use an integer"),
    ],
)
def test_wrong_specs_are_refused(feature: str, key: str, remedy: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        ModelSpec.parse(f'event = "custom"\nfeatures = [{{ name = "v", {feature} }}]'.encode(), "s.toml")
    assert caught.value.key == f"features.v.{key}"
    assert remedy in caught.value.remedy


def test_features_of_one_table_have_one_width() -> None:
    text = """event = "custom"
features = [{ name = "a", table = "t.npy", shape = [4] }, { name = "b", table = "t.npy", shape = [5] }]"""
    with pytest.raises(InvalidSpec, match=r"features\.b\.shape: \[5\], but \[4\] for the same table in 'a'"):
        ModelSpec.parse(text.encode(), "s.toml")
