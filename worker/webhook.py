"""POST /alarms: alarms from outside, as Alertmanager sends them (webhook payload version 4). Pure.

Rules:
- Nobody is let in without a token; where none is configured, nobody at all.
- An alert is known by its fingerprint and the time it began. Deliveries may repeat and overtake one another: what began
  no later than what was resolved last is over.
- A raised alarm whose end never comes (Alertmanager is gone, the payload was truncated) ends by itself after `TTL_S`.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Final, Literal, NamedTuple

import msgspec

from schemas.errors import UNREADABLE, unreadable
from worker.printable import printable

MAX_BODY_BYTES: Final = 1 << 20
MAX_ALERTS: Final = 1000
MAX_KNOWN: Final = 1024
"""Alerts that are remembered, raised and resolved together."""

TTL_S: Final = 6 * 3600.0
"""Alertmanager's repeat_interval should be below it."""


class WebhookError(Exception):
    """The request is refused. `status` is the HTTP status: 4xx for good, 503 to be sent again."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Authenticator:
    """Lets requests in by bearer token, compared in constant time."""

    def __init__(self, tokens: Sequence[str]) -> None:
        """Several `tokens` are valid at once, so that they can be changed without a gap."""
        if not all(tokens):
            raise ValueError("alarm tokens must not be empty; leave them out instead")
        self._tokens = [_digest(token.encode("utf-8", "surrogateescape")) for token in tokens]

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises `WebhookError` 401. `headers` is looked up as "Authorization"."""
        if not self._tokens:
            raise WebhookError(401, "the webhook is off: set `alarms.webhook_token_file`")
        kind, _, token = headers.get("Authorization", "").partition(" ")
        offered = _digest(token.strip().encode("utf-8", "surrogateescape"))
        # All are compared, whichever matches, and digests are, so that neither time nor length tells anything.
        valid = [hmac.compare_digest(offered, known) for known in self._tokens]
        if kind.lower() != "bearer" or not any(valid):
            raise WebhookError(401, "a bearer token is needed: the content of the worker's `alarms.webhook_token_file`")


class Alert(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One alert of the payload, as far as it matters here."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str] = {}
    starts_at: str = ""
    fingerprint: str = ""

    @property
    def identity(self) -> str:
        """The fingerprint; from senders without one, a digest of the labels."""
        if self.fingerprint:
            return self.fingerprint
        return _digest(msgspec.json.encode(sorted(self.labels.items()))).hex()[:16]

    @property
    def began(self) -> datetime:
        """When it began to fire; the epoch where that is not said. Raises `ValueError`."""
        began = datetime.fromisoformat(self.starts_at) if self.starts_at else datetime.fromtimestamp(0, UTC)
        return began if began.tzinfo else began.replace(tzinfo=UTC)


class Payload(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    alerts: list[Alert]


class Outside(NamedTuple):
    """One alarm from outside, its texts fit for a log. `name` is what holds a breaker."""

    name: str
    alertname: str
    model: str | None
    """Label `model`; None is for all models."""


def parse(body: bytes) -> list[Alert]:
    """The alerts of a payload. Raises `WebhookError` 400 or 413 that names what is wrong."""
    if len(body) > MAX_BODY_BYTES:
        raise WebhookError(413, f"{len(body)} bytes; {MAX_BODY_BYTES} are allowed: lower max_alerts of the receiver")
    try:
        payload = msgspec.json.decode(body, type=Payload)
        for alert in payload.alerts:
            alert.began  # noqa: B018 - refuses a bad time before anything is applied
    except UNREADABLE as error:
        raise WebhookError(400, f"not an Alertmanager payload: {unreadable(error)}") from error
    if payload.version != "4":
        raise WebhookError(400, f"version {payload.version!r}; version 4 of Alertmanager's webhook is understood")
    if len(payload.alerts) > MAX_ALERTS:
        raise WebhookError(
            413, f"{len(payload.alerts)} alerts; {MAX_ALERTS} are allowed: set the receiver's max_alerts"
        )
    return payload.alerts


@dataclass(slots=True)
class _Known:
    outside: Outside
    raised: bool
    began: datetime
    ends_at: float


class OutsideAlarms:
    """Which alarms from outside are raised. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}  # in the order of their last change

    def apply(self, alerts: Sequence[Alert], now: float) -> tuple[list[Outside], list[Outside]]:
        """Newly raised and newly cleared alarms. Raises `WebhookError` 503, before any change, when too many are up."""
        firing = {alert.identity for alert in alerts if alert.status == "firing"}
        up = {identity for identity, known in self._known.items() if known.raised}
        if len(up | firing) > MAX_KNOWN:
            raise WebhookError(503, f"{len(up | firing)} alarms at once; {MAX_KNOWN} are held")
        raised: dict[str, Outside] = {}
        cleared: dict[str, Outside] = {}
        for alert in alerts:
            self._apply(alert, now, raised, cleared)
        self._forget()
        return list(raised.values()), list(cleared.values())

    def expire(self, now: float) -> list[Outside]:
        """Alarms whose end did not come in `TTL_S`; they are cleared."""
        ended = [known for known in self._known.values() if known.raised and now >= known.ends_at]
        for known in ended:
            known.raised = False
        return [known.outside for known in ended]

    def _apply(self, alert: Alert, now: float, raised: dict[str, Outside], cleared: dict[str, Outside]) -> None:
        identity, began = alert.identity, alert.began
        known = self._known.pop(identity, None)
        if known is None:
            labels = {label: printable(value) for label, value in alert.labels.items()}
            name = f"alertmanager:{printable(identity)}"
            outside = Outside(name, labels.get("alertname", ""), labels.get("model"))
            known = _Known(outside, False, datetime.min.replace(tzinfo=UTC), inf)
        self._known[identity] = known
        if alert.status == "firing":
            if not known.raised and began <= known.began:
                return  # a delivery that its own end has overtaken
            if not known.raised:
                raised[identity] = known.outside
                cleared.pop(identity, None)
            known.raised, known.began, known.ends_at = True, max(began, known.began), now + TTL_S
        elif began >= known.began:
            if known.raised and raised.pop(identity, None) is None:
                cleared[identity] = known.outside
            known.raised, known.began = False, began

    def _forget(self) -> None:
        over = len(self._known) - MAX_KNOWN
        for identity in [key for key, known in self._known.items() if not known.raised][: max(0, over)]:
            del self._known[identity]


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()
