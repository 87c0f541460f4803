import pytest
from aiokafka.producer.message_accumulator import BatchBuilder

from schemas.dead_letter import Header
from worker.publisher import Messages, _fill

KEYS: list[bytes | None] = [b"a", None, b"c"]
VALUES: list[bytes | None] = [b"1" * 10, b"2" * 20, None]


@pytest.mark.parametrize("headers", [None, [[("h", b"x")], [], [("n", None)]]])
def test_a_filled_batch_is_the_one_that_the_client_itself_builds(headers: list[list[Header]] | None) -> None:
    ours, theirs = BatchBuilder(1 << 16, 0), BatchBuilder(1 << 16, 0)
    assert _fill(ours, Messages(KEYS, VALUES, headers), 1234) == 3
    for index, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        theirs.append(timestamp=1234, key=key, value=value, headers=headers[index] if headers else [])
    assert ours.record_count() == theirs.record_count() == 3
    assert bytes(ours._build()) == bytes(theirs._build())


def test_a_full_batch_says_how_many_are_in() -> None:
    ours, theirs = BatchBuilder(400, 0), BatchBuilder(400, 0)
    appended = _fill(ours, Messages([None] * 50, [b"v" * 40] * 50), 0)
    while theirs.append(timestamp=0, key=None, value=b"v" * 40) is not None:
        pass
    assert 1 < appended == theirs.record_count() < 50
    assert ours.size() == theirs.size()
