"""An HTTP server that answers as a test tells it to, as real ones do only at bad times."""

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from tfparallel_operator.api_server import client, credentials, resources

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass
class Server:
    """Answers requests by a script, one entry a request; the last entry stays."""

    url: str = ""
    script: list[Answer] = dataclasses.field(default_factory=list)
    requests: list[web.Request] = dataclasses.field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return await answer(request)

    def client(
        self,
        read_token: Callable[[], str | None] = lambda: None,
        watch_silence: float = 60.0,
        **more: Any,
    ) -> client.Client:
        token = credentials.Token(read_token)
        access = credentials.Access(self.url, True, token)
        return client.Client(access, watch_silence=watch_silence, **more)


@contextlib.asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    scheme = "https" if tls else "http"
    server.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def document(body: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with a JSON document."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return answer


def without(resource: resources.Resource) -> Answer:
    """Answer as an API server that has no objects, and does not know one resource."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if resource.plural in request.path:
            body = {"kind": "Status", "message": "not found", "reason": "NotFound"}
            return web.json_response(body, status=404)
        if "watch" in request.query:
            await asyncio.sleep(30)
        return web.json_response(listing(1))

    return answer


def text(body: str, status: int) -> Answer:
    """Answer with something that is not JSON, as proxies do."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=status)

    return answer


def stream(*chunks: bytes, then: str = "end") -> Answer:
    """Answer with chunks, and then end, cut the connection, or fall silent."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)
        if then == "silence":
            await asyncio.sleep(10)
        if then == "cut" and request.transport is not None:
            request.transport.abort()
        return response

    return answer


def event(kind: str, version: int, name: str = "pod", **more: Any) -> bytes:
    """Return one line of a watch."""
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version)}
    return orjson.dumps({"type": kind, "object": {"metadata": {**metadata, **more}}}) + b"\n"


def listing(version: int, *items: dict[str, Any], go_on: str = "") -> dict[str, Any]:
    """Return one page of a list."""
    metadata = {"resourceVersion": str(version), **({"continue": go_on} if go_on else {})}
    return {"metadata": metadata, "items": list(items)}
