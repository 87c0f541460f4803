"""A message that the brokers refuse as too large goes without its largest part: refused for good, it would end the
worker, again after each restart."""

from schemas.dead_letter import DeadLetter, Header
from worker.publisher import Messages, _smaller

OURS: list[Header] = [("scorelane.reason", b"malformed"), ("scorelane.detail", b"d" * 1000)]


def one(key: bytes | None, value: bytes | None, headers: list[Header]) -> Messages:
    messages = Messages()
    messages.add_one(key, value, headers)
    return messages


def test_a_value_is_cut_at_its_end() -> None:
    smaller, what = _smaller(one(b"k", b"ab" * 2000, OURS))
    assert smaller == one(b"k", b"ab" * 512, [*OURS, ("scorelane.truncated", b"4000")])
    assert what == "its value of 4000 bytes"


def test_a_key_larger_than_the_value_is_left_out() -> None:
    messages = Messages([b"k" * 3000], [b"v" * 2000])
    smaller, what = _smaller(messages)
    assert smaller == one(None, b"v" * 2000, [("scorelane.dropped_key", b"3000")])
    assert what == "its key of 3000 bytes"


def test_headers_that_are_not_ours_are_left_out() -> None:
    smaller, what = _smaller(one(b"k", None, [("a", b"x" * 2000), *OURS, ("b" * 500, None)]))
    assert smaller == one(b"k", None, [*OURS, ("scorelane.dropped_headers", b"2")])
    assert what == "its headers of 2501 bytes"


def test_a_value_that_is_cut_twice_keeps_its_whole_length() -> None:
    letter = DeadLetter("malformed", "d", "t", 0, 7, 1000, b"k", b"v" * 5_000_000).to_record(900_000)
    smaller, what = _smaller(one(*letter))
    assert what.startswith("its value of 899")
    assert smaller is not None and smaller.headers is not None
    assert smaller.values == [b"v" * 1024]
    assert [value for name, value in smaller.headers[0] if name == "scorelane.truncated"] == [b"5000000"]


def test_each_part_goes_at_most_once_and_then_there_is_nothing_left_to_cut() -> None:
    messages = one(b"k" * 5000, b"v" * 6000, [("a", b"x" * 4000)])
    parts = []
    while True:
        smaller, what = _smaller(messages)
        parts.append(what)
        if smaller is None:
            break
        messages = smaller
    assert parts == [
        "its value of 6000 bytes",
        "its key of 5000 bytes",
        "its headers of 4001 bytes",
        "a value of 1024 bytes",
    ]
