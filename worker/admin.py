"""/healthz, /readyz, /metrics and Alertmanager's webhook over HTTP."""

from collections.abc import Callable, Mapping

from aiohttp import web

from worker.errors import WorkerError
from worker.metrics import Metrics
from worker.webhook import MAX_BODY_BYTES, WebhookError


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
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._exposition),
                web.post("/alarms", self._alarms),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None)

    async def start(self) -> int:
        """Listen; returns the port. Raises `WorkerError` when it is taken."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            raise WorkerError(
                f"admin: {self._host}:{self._port}: {error.strerror}; choose another admin.port"
            ) from error
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        await self._runner.cleanup()

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


def _answer(against: list[str]) -> web.Response:
    return web.Response(status=503 if against else 200, text="\n".join(against or ["ok"]) + "\n")
