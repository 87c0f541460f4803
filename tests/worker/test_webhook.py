"""Alarms from outside: let in by a token, raised and cleared once, whatever order they come in."""

import json
from copy import deepcopy
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.webhook import (
    MAX_KNOWN,
    TTL_S,
    Alert,
    Authenticator,
    Outside,
    OutsideAlarms,
    WebhookError,
    parse,
)

# The example of Alertmanager's documentation of its webhook, shortened.
BODY = json.dumps(
    {
        "version": "4",
        "groupKey": '{}:{alertname="ScoreLatencyHigh"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "scorelane",
        "groupLabels": {"alertname": "ScoreLatencyHigh"},
        "commonLabels": {"alertname": "ScoreLatencyHigh"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "ScoreLatencyHigh", "model": "din", "severity": "page"},
                "annotations": {"summary": "p99 above 75 ms"},
                "startsAt": "2026-08-01T10:00:00.123456789Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "http://prometheus:9090/graph",
                "fingerprint": "a1b2c3",
            },
            {
                "status": "resolved",
                "labels": {"alertname": "ScoreLatencyHigh", "severity": "page"},
                "annotations": {},
                "startsAt": "2026-08-01T09:00:00+01:00",
                "endsAt": "2026-08-01T10:00:00Z",
                "generatorURL": "",
                "fingerprint": "d4e5f6",
            },
        ],
    }
).encode()
DIN = Outside("alertmanager:a1b2c3", "ScoreLatencyHigh", "din")


def alert(status: str, minute: int = 0, fingerprint: str = "f", **labels: str) -> Alert:
    return Alert(status=status, labels=labels, starts_at=f"2026-08-01T10:{minute:02}:00Z", fingerprint=fingerprint)  # type: ignore[arg-type]


def names(changes: tuple[list[Outside], list[Outside]]) -> tuple[list[str], list[str]]:
    return [change.name for change in changes[0]], [change.name for change in changes[1]]


UP, DOWN, SAME = (["alertmanager:f"], []), ([], ["alertmanager:f"]), ([], [])


def test_payload_raises_what_fires_and_clears_only_what_was_raised() -> None:
    alarms = OutsideAlarms()
    assert alarms.apply(parse(BODY), 0.0) == ([DIN], [])
    assert alarms.expire(inf) == [DIN], "nothing else is raised"


def test_repeated_deliveries_change_nothing() -> None:
    alarms = OutsideAlarms()
    assert names(alarms.apply([alert("firing")], 0.0)) == UP
    assert names(alarms.apply([alert("firing")], 60.0)) == SAME
    assert names(alarms.apply([alert("resolved")], 120.0)) == DOWN
    assert names(alarms.apply([alert("resolved")], 121.0)) == SAME
    assert alarms.expire(inf) == []


def test_a_delivery_that_its_end_has_overtaken_raises_nothing() -> None:
    alarms = OutsideAlarms()
    assert names(alarms.apply([alert("resolved", 5)], 0.0)) == SAME
    assert names(alarms.apply([alert("firing", 5)], 1.0)) == SAME
    assert names(alarms.apply([alert("firing", 6)], 2.0)) == UP


def test_the_end_of_an_earlier_alert_does_not_clear_a_later_one() -> None:
    alarms = OutsideAlarms()
    alarms.apply([alert("firing", 9)], 0.0)
    assert names(alarms.apply([alert("resolved", 3)], 1.0)) == SAME
    assert len(alarms.expire(inf)) == 1


def test_up_and_down_in_one_payload_is_no_change() -> None:
    assert names(OutsideAlarms().apply([alert("firing"), alert("resolved")], 0.0)) == SAME


def test_an_alarm_whose_end_never_comes_ends_by_itself() -> None:
    alarms = OutsideAlarms()
    alarms.apply([alert("firing")], 0.0)
    alarms.apply([alert("firing")], 50.0)
    assert alarms.expire(50.0 + TTL_S - 1.0) == []
    assert [outside.name for outside in alarms.expire(50.0 + TTL_S)] == ["alertmanager:f"]
    assert alarms.expire(inf) == []


def test_labels_cannot_forge_a_log_line_or_steer_a_terminal() -> None:
    sent = alert("firing", fingerprint="f\n", alertname="Slow\n2026 ERROR all is lost", model="\x1b[2J\u2028din")
    [outside], _ = OutsideAlarms().apply([sent], 0.0)
    assert outside == ("alertmanager:f\\n", "Slow\\n2026 ERROR all is lost", "\\x1b[2J\\u2028din")


def test_without_a_fingerprint_the_labels_are_the_identity() -> None:
    alarms = OutsideAlarms()
    raised, _ = alarms.apply([alert("firing", fingerprint="", a="1", b="2")], 0.0)
    _, cleared = alarms.apply([alert("resolved", fingerprint="", b="2", a="1")], 1.0)
    assert raised == cleared and len(raised) == 1


def test_what_is_remembered_is_bounded() -> None:
    alarms = OutsideAlarms()
    many = [str(number) for number in range(MAX_KNOWN)]
    alarms.apply([alert("firing", 1, name) for name in many], 0.0)
    with pytest.raises(WebhookError, match="1025 alarms at once") as caught:
        alarms.apply([alert("firing", 1, "one more")], 1.0)
    assert caught.value.status == 503
    alarms.apply([alert("resolved", 1, name) for name in many], 2.0)
    assert names(alarms.apply([alert("firing", 1, "one more")], 3.0)) == (["alertmanager:one more"], [])
    assert len(alarms._known) == MAX_KNOWN


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 3)), max_size=30))
def test_deliveries_in_any_order_and_number_end_where_the_last_change_left_it(
    deliveries: list[tuple[int, bool, int]],
) -> None:
    """Alerts 0, 1, 2, ... begin one after the other and each is resolved before the next; the last one still fires."""
    alarms = OutsideAlarms()
    held: set[str] = set()
    history = [*deliveries, (4, True, 1)]
    for minute, firing, times in history:
        for _ in range(times):
            raised, cleared = alarms.apply([alert("firing" if firing else "resolved", minute)], 0.0)
            held |= {outside.name for outside in raised}
            held -= {outside.name for outside in cleared}
            assert held == {outside.name for outside in deepcopy(alarms).expire(inf)}
    assert held == {"alertmanager:f"}


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "not an Alertmanager payload"),
        (b"[]", 400, "Expected `object`"),
        (b'{"version": "3", "alerts": []}', 400, "version '3'"),
        (b'{"version": "4"}', 400, "`alerts`"),
        (b'{"version": "4", "alerts": [{"status": "odd"}]}', 400, "Invalid enum value 'odd'"),
        (b'{"version": "4", "alerts": [{"status": "firing", "startsAt": "noon"}]}', 400, "noon"),
        (b'{"version": "4", "alerts": [{"status": "firing", "labels": {"a": "\xff"}}]}', 400, "not an Alertmanager"),
        (b'{"version": "4", "alerts": [' + b",".join([b'{"status":"firing"}'] * 1001) + b"]}", 413, "1001 alerts"),
        (b'{"version": "4", "alerts": [{"annotations": ' + b"[" * 100_000, 400, "nested too deeply"),
        (b'{"version": "4", "other": ' + b"[" * 100_000, 400, "nested too deeply"),
        (b" " * (1 << 20) + b"{}", 413, "bytes"),
    ],
)
def test_bad_payloads_are_refused_with_what_is_wrong(body: bytes, status: int, message: str) -> None:
    with pytest.raises(WebhookError, match=message) as caught:
        parse(body)
    assert caught.value.status == status


def test_any_of_the_tokens_lets_in() -> None:
    door = Authenticator(["old", "new"])
    for token in ("Bearer old", "bearer new"):
        door.check({"Authorization": token})


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic old"},
        {"Authorization": "Bearer \udcff"},
    ],
)
def test_everyone_else_stays_outside(headers: dict[str, str]) -> None:
    with pytest.raises(WebhookError, match=r"^a bearer token is needed: .*`alarms.webhook_token_file`") as caught:
        Authenticator(["old"]).check(headers)
    assert caught.value.status == 401


def test_with_nothing_configured_nobody_comes_in() -> None:
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "Bearer secret"}):
        with pytest.raises(WebhookError, match=r"^the webhook is off: set `alarms.webhook_token_file`") as caught:
            Authenticator([]).check(headers)
        assert caught.value.status == 401


def test_empty_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Authenticator([""])
