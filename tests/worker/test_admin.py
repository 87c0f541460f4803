"""The admin pages over real HTTP, on a free port."""

import asyncio
import json
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from io import BytesIO
from itertools import islice
from pathlib import Path

import aiohttp
import pytest

from worker import admin
from worker.admin import MAX_CONNECTIONS, Admin
from worker.cli.loop import run
from worker.errors import WorkerError
from worker.metrics import Metrics
from worker.webhook import MAX_BODY_BYTES, Authenticator, WebhookError, parse


class Site:
    """An admin server and a client of it. `against` are the reasons that its pages give."""

    def __init__(self, tokens: list[str]) -> None:
        self.dead: list[str] = []
        self.unready: list[str] = []
        self.alarms = 0
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.metrics = Metrics()
        self._authenticator = Authenticator(tokens)
        self.admin = Admin(
            "127.0.0.1",
            0,
            live=lambda: self.dead,
            ready=lambda: self.unready,
            receive=self._receive,
            metrics=self.metrics,
        )

    def _receive(self, headers: Mapping[str, str], body: bytes) -> str:
        self._authenticator.check(headers)
        alerts = len(parse(body))
        self.alarms += alerts
        return f"{alerts} taken"

    async def connect(self, sent: bytes) -> asyncio.StreamReader:
        """A connection that has sent so much of a request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader

    async def disconnect(self) -> None:
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.client.get(path) as answer:
            return answer.status, await answer.text()

    async def post(self, body: bytes, token: str | None = "secret", path: str = "/alarms") -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.client.post(path, data=BytesIO(body), headers=headers) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async for each in _sites(["secret"]):
        yield each


@pytest.fixture
async def closed_site() -> AsyncIterator[Site]:
    """No token is configured."""
    async for each in _sites([]):
        yield each


async def _sites(tokens: list[str]) -> AsyncIterator[Site]:
    made = Site(tokens)
    port = await made.admin.start()
    try:
        made.port = port
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as made.client:
            yield made
    finally:
        await made.disconnect()
        await made.admin.stop()


ALERT = {"status": "firing", "labels": {"alertname": "GpuHot"}, "startsAt": "2026-08-01T10:00:00Z"}
BODY = json.dumps({"version": "4", "alerts": [ALERT, ALERT]}).encode()


async def test_health_and_readiness_say_why_not(site: Site) -> None:
    assert await site.get("/healthz") == await site.get("/readyz") == (200, "ok\n")
    site.unready = ["warming up", "no assignment"]
    assert await site.get("/readyz") == (503, "warming up\nno assignment\n")
    assert await site.get("/healthz") == (200, "ok\n")
    site.dead = ["the last poll was 61 s ago"]
    assert await site.get("/healthz") == (503, "the last poll was 61 s ago\n")


async def test_metrics_are_prometheus_text(site: Site) -> None:
    site.metrics.records.labels("tips").inc(3)
    async with site.client.get("/metrics") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = (await answer.text()).splitlines()
    assert 'scorelane_records_total{topic="tips"} 3.0' in lines


async def test_alarms_with_the_token_are_taken(site: Site) -> None:
    assert await site.post(BODY) == (200, "2 taken\n")
    assert site.alarms == 2


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_the_process_says_what_it_uses(site: Site) -> None:
    """Counted by the kernel: beside what `times` and /proc say at about the same moment."""
    before = sum(os.times()[:2])
    _, text = await site.get("/metrics")
    found = {name: float(value) for name, value in re.findall(r"^(process_\w+) (\S+)$", text, re.MULTILINE)}
    assert before - 0.02 <= found["process_cpu_seconds_total"] <= sum(os.times()[:2]) + 0.02
    assert found["process_resident_memory_bytes"] == pytest.approx(resident_bytes(), rel=0.2)


@pytest.mark.parametrize("token", [None, "wrong", ""])
async def test_alarms_of_others_are_refused(site: Site, token: str | None) -> None:
    status, text = await site.post(BODY, token)
    assert (status, site.alarms) == (401, 0)
    assert "bearer token" in text


async def test_without_a_configured_token_nobody_is_let_in(closed_site: Site) -> None:
    answers = [await closed_site.post(BODY, token) for token in ("", "secret", None)]
    assert [(status, "the webhook is off" in text) for status, text in answers] == [(401, True)] * 3


async def test_a_body_that_is_no_payload_is_refused_with_the_reason(site: Site) -> None:
    status, text = await site.post(b"{")
    assert status == 400
    assert text.startswith("not an Alertmanager payload: ")


async def test_a_body_that_is_too_large_is_refused(site: Site) -> None:
    """One alert that fits, padded with white space to the limit and beyond it."""
    assert (await site.post(BODY.ljust(MAX_BODY_BYTES)))[0] == 200
    assert (await site.post(BODY.ljust(MAX_BODY_BYTES + 1)))[0] == 413
    assert (await site.post(BODY.ljust(4 * MAX_BODY_BYTES)))[0] == 413
    assert site.alarms == 2


async def test_a_worker_that_is_not_there_yet_says_so(site: Site) -> None:
    def starting(headers: Mapping[str, str], body: bytes) -> str:
        raise WebhookError(503, "the worker is starting; send it again")

    site.admin._receive = starting
    assert await site.post(BODY) == (503, "the worker is starting; send it again\n")


async def test_other_paths_and_methods_do_nothing(site: Site) -> None:
    assert (await site.get("/alarms"))[0] == 405
    assert (await site.post(BODY, path="/readyz"))[0] == 405
    assert (await site.get("/favicon.ico"))[0] == 404


async def test_the_root_names_the_paths(site: Site) -> None:
    status, text = await site.get("/")
    assert status == 200
    paths = re.findall(r"/[a-z]+", text)
    assert paths == ["/healthz", "/readyz", "/metrics", "/alarms"]
    assert [(await site.get(path))[0] for path in paths] == [200, 200, 200, 405]


HEAD = b"POST /alarms HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nAuthorization: Bearer secret\r\n"
UNFINISHED = [b"", b"G", HEAD, HEAD + b"\r\n", HEAD + b"\r\n12345"]


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side ends the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("sent", UNFINISHED)
async def test_idle_connections_make_room_for_the_next_ones(site: Site, sent: bytes) -> None:
    readers = [await site.connect(sent) for _ in range(3 * MAX_CONNECTIONS)]
    assert await site.get("/healthz") == (200, "ok\n")
    async with asyncio.timeout(5):
        for reader in readers[: 2 * MAX_CONNECTIONS + 1]:
            assert await ended(reader) == b""
    assert not any(reader.at_eof() or reader.exception() for reader in readers[2 * MAX_CONNECTIONS + 1 :])


async def test_a_burst_of_connections_leaves_the_same_number_open(site: Site) -> None:
    burst = MAX_CONNECTIONS + 30  # fewer than the kernel holds for a listener
    readers = await asyncio.gather(*(site.connect(b"") for _ in range(burst)))
    assert await site.get("/healthz") == (200, "ok\n")
    async with asyncio.timeout(5):
        for ending in islice(asyncio.as_completed([ended(reader) for reader in readers]), burst - MAX_CONNECTIONS + 1):
            assert await ending == b""


@pytest.mark.parametrize("sent", UNFINISHED)
async def test_a_request_that_is_not_finished_in_time_is_cut_off(
    site: Site, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CONNECTION_S", 0.05)
    reader = await site.connect(sent)
    async with asyncio.timeout(5):
        assert await ended(reader) == b""


def test_the_loop_that_the_commands_use_closes_connections_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "CONNECTION_S", 0.5)

    async def main() -> None:
        async for site in _sites([]):
            readers = [await site.connect(b"G") for _ in range(MAX_CONNECTIONS + 1)]
            assert await site.get("/healthz") == (200, "ok\n")
            async with asyncio.timeout(5):
                assert [await ended(reader) for reader in readers] == [b""] * len(readers)

    run(main())


async def test_a_connection_is_for_one_request(site: Site) -> None:
    reader = await site.connect(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 2)
    async with asyncio.timeout(5):
        answer = await ended(reader)
    assert (answer.count(b"HTTP/1.1 200 OK"), answer.count(b"Connection: close")) == (1, 1)


async def test_half_a_request_does_not_hold_up_the_end(site: Site) -> None:
    reader = await site.connect(UNFINISHED[-1])
    assert await site.get("/healthz") == (200, "ok\n"), "the half is there too"
    async with asyncio.timeout(5):
        await site.admin.stop()
        assert await ended(reader) == b""


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        admin = Admin("127.0.0.1", port, live=list, ready=list, receive=lambda *_: "", metrics=Metrics())
        with pytest.raises(WorkerError, match=rf"admin: 127\.0\.0\.1:{port}: .*choose another admin\.port"):
            await admin.start()
        await admin.stop()


@pytest.mark.parametrize("host", ["nohost.invalid", "x" * 70 + ".invalid", "192.0.2.1"])
async def test_a_host_that_is_none_of_this_machine_is_named(host: str) -> None:
    admin = Admin(host, 0, live=list, ready=list, receive=lambda *_: "", metrics=Metrics())
    with pytest.raises(WorkerError, match=rf"admin: {host}:0: .*; give an address of this machine as admin\.host$"):
        await admin.start()
    await admin.stop()
