"""Attacks on an operator, each by a process of its own."""

import asyncio
import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import AsyncIterator, Mapping

import aiohttp

from benchmarks import processes
from benchmarks.operators import contestants
from benchmarks.scripts import flood, repeated_events
from tfparallel_operator.local import ports

REPEATED = 10_000
"""Events in a second on the flooded job's pods."""

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{{name: repeated, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
contexts: [{{name: repeated, context: {{cluster: repeated, user: nobody}}}}]
users: [{{name: nobody, user: {{}}}}]
current-context: repeated
"""


@contextlib.asynccontextmanager
async def flooding(target: flood.Target) -> AsyncIterator[dict[str, float]]:
    """Attack from a process of its own; what it counted is there when this is left."""
    counts: dict[str, float] = {}
    command = ("-m", flood.__name__, json.dumps(dataclasses.asdict(target)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, cwd=processes.ROOT
    )
    try:
        yield counts
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"The flood ended with exit code {process.returncode}.")
        counts |= json.loads(output)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def repeater(
    place: contestants.Place, job: str
) -> AsyncIterator[tuple[str, contextlib.AbstractAsyncContextManager[Mapping[str, float]]]]:
    """Start what repeats events of a job: a kubeconfig that leads to it, and the attack."""
    [port] = ports.allocate(1)
    kubeconfig = place.folder / "repeated-events.yaml"
    kubeconfig.write_text(KUBECONFIG.format(port=port), encoding="utf-8")
    route = repeated_events.Route(str(place.cluster.kubeconfig), place.namespace, job, port)
    command = ("-m", repeated_events.__name__, json.dumps(dataclasses.asdict(route)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, cwd=processes.ROOT
    )
    try:
        if process.stdout is None or not await process.stdout.readline():
            raise RuntimeError("What repeats events has ended at its start.")
        yield str(kubeconfig), _repeating(port)
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
