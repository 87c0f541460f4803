from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from schemas.dead_letter import DeadLetter

OURS = {
    "scorelane.reason": b"not_finite",
    "scorelane.detail": b"price: nan",
    "scorelane.topic": b"tips",
    "scorelane.partition": b"3",
    "scorelane.offset": b"41",
    "scorelane.timestamp": b"1700000000000",
}


def letter(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> DeadLetter:
    return DeadLetter("not_finite", "price: nan", "tips", 3, 41, 1700000000000, key, value, headers)


def test_the_original_record_is_kept_beside_the_reason() -> None:
    key, value, headers = letter(b"k", b"\xffbroken", ("trace", b"1"), ("none", None)).to_record(900_000)
    assert (key, value) == (b"k", b"\xffbroken")
    assert headers[:2] == [("trace", b"1"), ("none", None)]
    assert dict(headers[2:]) == OURS


def test_a_tombstone_stays_a_tombstone() -> None:
    assert letter(None, None).to_record(900_000)[:2] == (None, None)


def test_a_large_value_is_cut_and_can_be_identified() -> None:
    original = bytes(range(256)) * 400
    key, value, headers = letter(b"k", original, ("trace", b"1")).to_record(10_000)
    assert key == b"k" and headers[0] == ("trace", b"1")
    assert value is not None and 9_000 < len(value) < 10_000 and original.startswith(value)
    assert dict(headers[1:]) == OURS | {
        "scorelane.truncated": b"102400",
        "scorelane.sha256": sha256(original).hexdigest().encode(),
    }


def test_key_and_headers_that_do_not_fit_are_left_out_and_counted() -> None:
    key, value, headers = letter(b"k" * 5000, b"v", ("a", b"h" * 5000), ("b", b"")).to_record(2000)
    assert (key, value) == (None, b"v")
    assert dict(headers) == OURS | {"scorelane.dropped_key": b"5000", "scorelane.dropped_headers": b"2"}


@given(
    key=st.none() | st.binary(max_size=3000),
    value=st.none() | st.binary(max_size=3000),
    headers=st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=900)), max_size=4),
    limit=st.integers(600, 6000),
)
def test_the_record_is_never_larger_than_the_limit(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], limit: int
) -> None:
    new_key, new_value, new_headers = letter(key, value, *headers).to_record(limit)
    size = len(new_key or b"") + len(new_value or b"")
    assert size + sum(len(name.encode()) + len(content or b"") for name, content in new_headers) <= limit
    assert (new_value is None) == (value is None)
