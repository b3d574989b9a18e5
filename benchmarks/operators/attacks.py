"""Attacks on an operator, each by a process of its own."""

import asyncio
import contextlib
import dataclasses
import json
import sys
import time
import types
from collections.abc import AsyncIterator, Mapping

import aiohttp

from benchmarks import processes
from benchmarks.operators import contestants
from benchmarks.scripts import flood_requests, hostile_tenant, repeated_events
from testing.operator import operator_process
from tfparallel.backends.local import ports

REPEATED = 10_000
"""Events in a second on the flooded job's pods."""


@contextlib.asynccontextmanager
async def flooding(target: flood_requests.FloodTarget) -> AsyncIterator[dict[str, float]]:
    """Attack with everything while this is entered; what was counted is there when it is left."""
    async with _counting(flood_requests, target) as counts:
        yield counts


@contextlib.asynccontextmanager
async def storing(target: hostile_tenant.Target) -> AsyncIterator[dict[str, float]]:
    """Attack as a tenant while this is entered, in the same way."""
    async with _counting(hostile_tenant, target) as counts:
        yield counts


@contextlib.asynccontextmanager
async def _counting(
    module: types.ModuleType, target: flood_requests.FloodTarget | hostile_tenant.Target
) -> AsyncIterator[dict[str, float]]:
    counts: dict[str, float] = {}
    async with _script(module, target) as process:
        yield counts
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"The flood ended with exit code {process.returncode}.")
        counts |= json.loads(output)


@contextlib.asynccontextmanager
async def repeater(
    site: contestants.Place, job: str
) -> AsyncIterator[tuple[str, contextlib.AbstractAsyncContextManager[Mapping[str, float]]]]:
    """Start what repeats events of a job: a kubeconfig that leads to it, and the attack."""
    [port] = ports.allocate(1)
    kubeconfig = operator_process.write_kubeconfig(f"http://127.0.0.1:{port}", site.folder)
    route = repeated_events.Route(str(site.cluster.kubeconfig), site.namespace, job, port)
    async with _script(repeated_events, route) as process:
        if process.stdout is None or not await process.stdout.readline():
            raise RuntimeError("What repeats events has ended at its start.")
        yield str(kubeconfig), _repeating(port)


@contextlib.asynccontextmanager
async def _script(
    module: types.ModuleType,
    argument: flood_requests.FloodTarget | hostile_tenant.Target | repeated_events.Route,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a script with its argument, and end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module.__name__, json.dumps(dataclasses.asdict(argument))),
        stdout=asyncio.subprocess.PIPE,
        cwd=processes.ROOT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def _repeating(port: int) -> AsyncIterator[dict[str, float]]:
    """Repeat events while this is entered; how many they were is there when it is left."""
    counts: dict[str, float] = {}
    address = f"http://127.0.0.1:{port}{repeated_events.RATE_PATH}"
    async with aiohttp.ClientSession() as http:
        await (await http.put(address.format(rate=REPEATED))).read()
        begun = time.monotonic()
        yield counts
        counts["seconds"] = time.monotonic() - begun
        counts["events"] = await (await http.get(address.format(rate=0))).json()
        await (await http.put(address.format(rate=0))).read()
