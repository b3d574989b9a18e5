"""Stands between an operator and the API server, and repeats changes of one job's pods to it.

An API server on two cores cannot write ten thousand changes in a second. Here the last state of
each pod is sent again and again, each time as a newer version. So versions of pods are multiplied
on the way to the operator. All else passes through.
Arguments: a JSON object with the fields of `Route`.
"""

import asyncio
import dataclasses
import itertools
import json
import sys
import time
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from tfparallel_operator.api_server import credentials, resources

RATE_PATH = "/repeated-events/{rate}"
"""PUT sets how many there are in a second; GET with any rate tells how many there were."""

VERSIONS = 10**6
"""For each version of the API server there are this many."""

TICK_SECONDS = 0.01
KEPT_HEADERS = ("Accept", "Content-Type")
LARGEST_BODY = 2**25


@dataclasses.dataclass(frozen=True, slots=True)
class Route:
    """What is passed on, and where."""

    kubeconfig: str
    namespace: str
    job: str
    port: int
    """Of this machine, where the operator is to look for the API server."""


class Proxy:
    """Passes requests on, and repeats events in the watch of pods."""

    def __init__(self, route: Route, server: str, http: aiohttp.ClientSession) -> None:
        self._route = route
        self._server = server
        self._http = http
        self._pods = resources.PODS.path(route.namespace)
        self._events: dict[str, tuple[bytes, bytes]] = {}
        """The last state of each pod, before and after its version."""
        self._version = 0
        self._rate = 0.0
        self._begun = time.monotonic()
        self._sent = 0

    async def set_rate(self, request: web.Request) -> web.StreamResponse:
        """Repeat so many events in a second from now on."""
        self._rate = float(request.match_info["rate"])
        self._begun, self._sent = time.monotonic(), 0
        return web.Response()

    async def count(self, _: web.Request) -> web.StreamResponse:
        """Tell how many were repeated since the rate was set."""
        return web.json_response(self._sent)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Ask the API server."""
        reads_pods = request.method == "GET" and request.path == self._pods
        query = dict(request.query)
        if reads_pods and "resourceVersion" in query:
            query["resourceVersion"] = str(int(query["resourceVersion"]) // VERSIONS)
        async with self._http.request(
            request.method,
            self._server + request.path,
            params=query,
            data=await request.read() or None,
            headers={name: request.headers[name] for name in KEPT_HEADERS & request.headers.keys()},
            timeout=aiohttp.ClientTimeout(),
        ) as answer:
            headers = {"Content-Type": answer.headers.get("Content-Type", "application/json")}
            if "watch" not in query:
                body = await answer.read()
                if reads_pods:
                    body = _multiplied(body)
                return web.Response(body=body, status=answer.status, headers=headers)
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            if reads_pods and answer.status == 200:
                await self._watch_pods(answer.content, response)
            else:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            return response

    async def _watch_pods(self, lines: aiohttp.StreamReader, response: web.StreamResponse) -> None:
        async with asyncio.TaskGroup() as group:
            repeats = group.create_task(self._repeat(response))
            async for line in lines:
                event = orjson.loads(line)
                metadata = event["object"].get("metadata", {})
                self._version = max(self._version, _multiply(metadata))
                if str(metadata.get("name", "")).startswith(f"{self._route.job}-"):
                    self._keep(event)
                await response.write(orjson.dumps(event) + b"\n")
            repeats.cancel()

    def _keep(self, event: dict[str, Any]) -> None:
        metadata = event["object"]["metadata"]
        repeated = {**event, "type": "MODIFIED"}
        before, _, after = orjson.dumps(repeated).partition(metadata["resourceVersion"].encode())
        self._events[metadata["name"]] = before, after

    async def _repeat(self, response: web.StreamResponse) -> None:
        for tick in itertools.count():
            await asyncio.sleep(TICK_SECONDS)
            due = int((time.monotonic() - self._begun) * self._rate) - self._sent
            events = list(self._events.values())
            if due <= 0 or not events:
                continue
            chosen = itertools.islice(itertools.cycle(events), tick, tick + due)
            lines = []
            for before, after in chosen:
                self._version += 1
                lines.append(b"%b%d%b\n" % (before, self._version, after))
            await response.write(b"".join(lines))
            self._sent += due


def _multiplied(body: bytes) -> bytes:
    """Return a list of pods, or an error, with the versions that the watch has."""
    answer = orjson.loads(body)
    for entry in (answer, *answer.get("items", ())):
        _multiply(entry.get("metadata", {}))
    return orjson.dumps(answer)


def _multiply(metadata: dict[str, Any]) -> int:
    """Multiply the version in an object's metadata and return it; 0 where it has none."""
    version = int(metadata.get("resourceVersion") or 0) * VERSIONS
    if version:
        metadata["resourceVersion"] = str(version)
    return version


async def serve(route: Route) -> None:
    """Pass on until this process is ended; a line is printed when that begins."""
    access = credentials.find(route.kubeconfig)
    async with access.session() as http:
        proxy = Proxy(route, access.server, http)
        application = web.Application(client_max_size=LARGEST_BODY)
        application.router.add_put(RATE_PATH, proxy.set_rate)
        application.router.add_get(RATE_PATH, proxy.count)
        application.router.add_route("*", "/{path:.*}", proxy.pass_on)
        runner = web.AppRunner(application, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", route.port).start()
        print("listening", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Route(**json.loads(sys.argv[1]))))
