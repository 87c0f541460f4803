"""Bad records in the middle of a batch become dead letters with all of the original; their neighbours are scored."""

import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engines.package import Package, write_package
from schemas.event import TippingEvent
from schemas.spec import ModelSpec, builtin
from tests.conftest import StartWorker
from tests.e2e.pipeline import Pipeline, configuration, encode, positions, tips
from tests.e2e.reference import fingerprint_package
from tests.kafka.client import LARGEST, Client, Message, Record
from tests.kafka.process import wait_until

pytestmark = pytest.mark.kafka

GOOD = tips(8, 7)
TIP = msgspec.structs.asdict(GOOD[0])


def _tip(**changed: object) -> bytes:
    return msgspec.msgpack.encode(list((TIP | changed).values()))


def _features(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


TIPPING = {
    "no value": (None, "empty"),
    "no bytes": (b"", "empty"),
    "larger than allowed": (_tip(event_id="x" * 70_000), "too_large"),
    "truncated": (encode(GOOD[0])[:-9], "malformed"),
    "bytes after the end": (encode(GOOD[0]) + b"\x00", "malformed"),
    "invalid UTF-8": (encode(GOOD[0]).replace(b"tip-7-0", b"tip-\xff\xfe0"), "malformed"),
    "not msgpack": (b"\xc1" * 40, "malformed"),
    "too few fields": (msgspec.msgpack.encode(list(TIP.values())[:7]), "missing_field"),
    "null where a value is needed": (_tip(price=None), "missing_field"),
    "text for a number": (_tip(gift_count="many"), "wrong_type"),
    "a map": (msgspec.msgpack.encode(TIP), "wrong_type"),
    "a feature too few": (_tip(features=_features(*[1.0] * 31)), "wrong_length"),
    "half a feature": (_tip(features=_features(*[1.0] * 32)[:-2]), "wrong_length"),
    "NaN": (_tip(features=_features(*[1.0] * 31, math.nan)), "not_finite"),
    "infinity": (_tip(price=math.inf), "not_finite"),
    "below the minimum": (_tip(gift_count=-1), "out_of_range"),
}
"""What is wrong -> (record value, reason)."""

ORDERS = ModelSpec.parse(
    b"""
event = "custom"
key = "order"
features = [
    { name = "amount", max = 100.0 },
    { name = "country", vocabulary = ["de", "fr"], unknown = "refuse" },
    { name = "item", ids = 100000 },
]
""",
    "orders.toml",
)
ORDER = {"order": "o-1", "amount": 3, "country": "de", "item": 5}
JSON = {
    "a value outside the vocabulary": (ORDER | {"country": "xx"}, "unknown_value"),
    "a field is absent": ({"order": "o-2", "country": "de", "item": 5}, "missing_field"),
    "above the maximum": (ORDER | {"amount": 101}, "out_of_range"),
    "an id out of range": (ORDER | {"item": 100_000}, "out_of_range"),
    "an id that the model does not have": (ORDER | {"item": 99_999}, "unscorable"),
}


@pytest.fixture
def orders(tmp_path: Path) -> Package:
    """A model that lacks the last item of its spec, which warm-up does not name: ONNX Runtime refuses the whole
    batch that does."""
    small = ModelSpec.parse(ORDERS.dumps().replace(b"ids = 100000", b"ids = 99999"), "small.toml")
    model = fingerprint_package(tmp_path / "small", small).file("model.onnx").read_bytes()
    files = {"model.onnx": model, "spec.toml": ORDERS.dumps()}
    return write_package(tmp_path, name="orders", version="1", kind="fingerprint", files=files)


def _check(pipeline: Pipeline, records: list[Record], where: list[tuple[int, int]], reasons: dict[int, str]) -> None:
    """`reasons` has the index of each bad record. All others are scored, once."""
    good = [position for index, position in enumerate(where) if index not in reasons]
    assert positions(pipeline.scores()) == dict.fromkeys(good, 1)
    letters = {_position(letter): letter for letter in pipeline.dead_letters()}
    assert len(letters) == len(pipeline.dead_letters()) == len(reasons)
    for index, reason in reasons.items():
        letter, record = letters[where[index]], records[index]
        headers = dict(letter.headers)
        assert headers["scorelane.reason"] == reason.encode(), (index, headers)
        assert headers["scorelane.topic"] == pipeline.name.encode()
        assert headers["scorelane.detail"]
        assert (letter.key, letter.value, letter.partition) == (record.key, record.value, where[index][0])
        assert letter.headers[: len(record.headers)] == tuple(record.headers), "the original headers come first"
        assert headers["scorelane.timestamp"] == b"1700000000000"


def _position(letter: Message) -> tuple[int, int]:
    headers = dict(letter.headers)
    return int(headers["scorelane.partition"] or b""), int(headers["scorelane.offset"] or b"")


def _between(good: list[bytes], bad: Mapping[str, tuple[bytes | None, str]]) -> tuple[list[Record], dict[int, str]]:
    """Each bad value between good ones, in one partition; and the reasons by index."""
    records: list[Record] = []
    reasons: dict[int, str] = {}
    for name, (value, reason) in bad.items():
        records += [Record(one, partition=1) for one in good]
        reasons[len(records)] = reason
        headers = [("trace", name.encode()), ("none", None)]
        records.append(Record(value, key=name.encode(), partition=1, headers=headers, timestamp=1_700_000_000_000))
    return [*records, *(Record(one, partition=1) for one in good)], reasons


def test_each_kind_of_bad_record_is_a_dead_letter_and_its_neighbours_are_scored(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker, orders: Package
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    binary = Pipeline(kafka, unique, package.path)
    text = Pipeline(kafka, f"{unique}-json", orders.path, options={"format": "json"}, group=unique)
    tipping, tipping_reasons = _between([encode(event) for event in GOOD], TIPPING)
    bad = {name: (msgspec.json.encode(value), reason) for name, (value, reason) in JSON.items()}
    ordered, ordered_reasons = _between([msgspec.json.encode(ORDER)] * 8, bad)
    tipping_where, ordered_where = binary.produce(tipping), text.produce(ordered)

    worker = start_worker(configuration([binary, text], worker={"max_event_bytes": 65_536}))
    binary.wait_finished()
    text.wait_finished()
    _check(binary, tipping, tipping_where, tipping_reasons)
    _check(text, ordered, ordered_where, ordered_reasons)
    assert worker.metric("scorelane_dead_letters_total", reason="malformed") == 4
    assert worker.metric("scorelane_dead_letters_total") == len(TIPPING) + len(JSON)


def test_a_topic_of_which_nothing_can_be_scored_is_told_in_a_few_lines(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    pipeline = Pipeline(kafka, unique, package.path, partitions=1)
    pipeline.produce([msgspec.json.encode(TIP)] * 2000)
    worker = start_worker(configuration([pipeline]))
    pipeline.wait_finished()
    raised = f"alarm raised: topic {unique}: dead_letters: 100 %, limit 5 %"
    wait_until(lambda: raised in worker.stderr, "the alarm is raised")
    worker.sigterm()
    told = re.findall(rf"WARNING .*: topic {unique}: (\d+) of (\d+) records became dead letters.*", worker.stderr)
    assert len(told) <= 2, "one line in 10 s, and one at the end"
    assert sum(int(dead) for dead, _ in told) == sum(int(records) for _, records in told) == 2000
    assert "; the first: partition 0, offset 0: " in worker.stderr
    assert len(pipeline.dead_letters()) == 2000


def test_a_record_of_100_mb_is_a_dead_letter_with_its_digest_and_its_neighbours_are_scored(
    kafka: Client, unique: str, tmp_path: Path, start_worker: StartWorker
) -> None:
    package = fingerprint_package(tmp_path, builtin("tipping"))
    pipeline = Pipeline(kafka, unique, package.path, max_message_bytes=LARGEST)
    huge = b"\x9b" + bytes(100 << 20)
    before, after = ([Record(encode(event), partition=0) for event in tips(100, seed)] for seed in (1, 2))
    where = pipeline.produce([*before, Record(huge, key=b"huge", partition=0), *after])
    worker = start_worker(configuration([pipeline]))
    pipeline.wait_finished()

    assert positions(pipeline.scores()) == dict.fromkeys([*where[:100], *where[101:]], 1)
    (letter,) = pipeline.dead_letters()
    headers = dict(letter.headers)
    assert (headers["scorelane.reason"], _position(letter)) == (b"too_large", where[100])
    assert headers["scorelane.truncated"] == str(len(huge)).encode()
    assert headers["scorelane.sha256"] == hashlib.sha256(huge).hexdigest().encode()
    assert letter.key == b"huge"
    assert letter.value is not None and huge.startswith(letter.value) and len(letter.value) > 1000
    assert worker.exit_code is None


def test_tipping_events_are_what_the_bad_ones_were_made_from() -> None:
    """So that each of them is refused for its own fault only."""
    assert msgspec.msgpack.decode(_tip(), type=TippingEvent) == GOOD[0]
