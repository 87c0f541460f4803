"""/healthz, /readyz, /metrics and Alertmanager's webhook over HTTP.

Whoever reaches the port must not be able to take the process's descriptors: a connection serves one request, lives for
`CONNECTION_S` and is one of `MAX_CONNECTIONS`; the oldest makes room for a new one, so that a probe is always let in.
"""

import asyncio
import errno
from collections.abc import Callable, Mapping
from typing import Final, cast

from aiohttp import web

from worker.errors import WorkerError
from worker.metrics import Metrics
from worker.webhook import MAX_BODY_BYTES, WebhookError

MAX_CONNECTIONS: Final = 64
CONNECTION_S: Final = 10.0
STOP_S: Final = 1.0
"""For the answers that are on their way at the end."""


class Connection(web.RequestHandler):
    """aiohttp's side of one connection."""

    __slots__ = ("_expiry", "_open")

    def __init__(self, server: web.Server, open_: dict[web.RequestHandler, asyncio.Transport]) -> None:
        """`open_`: all of the port's connections, the oldest first."""
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._open = open_
        self._expiry: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._expiry = asyncio.get_running_loop().call_later(CONNECTION_S, stream.abort)
        self._open[self] = stream
        super().connection_made(stream)
        if len(self._open) > MAX_CONNECTIONS:
            self._open.pop(next(iter(self._open))).abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._expiry.cancel()
        self._open.pop(self, None)
        super().connection_lost(exc)


class Admin:
    """Answers from start-up to the very end of a drain, so that an orchestrator sees why a worker is not ready."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        live: Callable[[], list[str]],
        ready: Callable[[], list[str]],
        receive: Callable[[Mapping[str, str], bytes], str],
        metrics: Metrics,
    ) -> None:
        """`live` and `ready` give the reasons against; no reason is a yes. `receive` takes Alertmanager's webhook and
        gives what to answer."""
        self._host = host
        self._port = port
        self._live = live
        self._ready = ready
        self._metrics = metrics
        self._receive = receive
        application = web.Application(client_max_size=MAX_BODY_BYTES)
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._exposition),
                web.post("/alarms", self._alarms),
            ]
        )
        application.on_response_prepare.append(_once)
        self._runner = web.AppRunner(application, shutdown_timeout=STOP_S)
        self._listener: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen; returns the port. Raises `WorkerError` when it is taken, or the host is none of this machine's."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        connections: dict[web.RequestHandler, asyncio.Transport] = {}
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                lambda: Connection(server, connections), self._host, self._port, reuse_address=True
            )
        except (OSError, ValueError) as error:  # the latter: no host can have such a name
            of_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
            remedy = "choose another admin.port" if of_port else "give an address of this machine as admin.host"
            problem = getattr(error, "strerror", None) or error
            raise WorkerError(f"admin: {self._host}:{self._port}: {problem}; {remedy}") from error
        return int(self._listener.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text="scorelane: /healthz, /readyz and /metrics; Alertmanager posts to /alarms\n")

    async def _healthz(self, _: web.Request) -> web.Response:
        return _answer(self._live())

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._ready())

    async def _alarms(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            answer = self._receive(request.headers, body)
        except WebhookError as error:
            return web.Response(status=error.status, text=f"{error}\n")
        return web.Response(text=f"{answer}\n")

    async def _exposition(self, _: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


async def _once(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()
    response.headers["Connection"] = "close"  # the headers that follow from `force_close` were written before


def _answer(against: list[str]) -> web.Response:
    return web.Response(status=503 if against else 200, text="\n".join(against or ["ok"]) + "\n")
