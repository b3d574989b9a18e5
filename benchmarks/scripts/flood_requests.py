"""Attacks an operator for some seconds; prints as JSON how often it did what.

All at the same time: changes of one job and of its pods; reports with tokens that are none, from
several addresses; reports that are too large; and connections that send next to nothing.
Arguments: a JSON object with the fields of `Target`.
"""

import asyncio
import base64
import collections
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import ssl
import sys
from collections.abc import AsyncIterator

import aiohttp

from benchmarks.scripts import attacking
from tfparallel_operator.api_server import client, credentials, errors, resources
from tfparallel_operator.core.pods import progress_report

POD_WRITERS = 32
JOB_WRITERS = 2
"""Changes at the same time; the API server does those of one object one after another."""

SOURCES = 8
"""Addresses that tokens come from, each over several connections."""

SENDERS = 8
"""Connections of each of them."""

UPLOADS = 8
SLOW = 64
CHUNK = bytes(2**16)
UPLOAD_CHUNKS = 2**10


@dataclasses.dataclass(frozen=True, slots=True)
class FloodTarget:
    """What is attacked."""

    kubeconfig: str
    namespace: str
    job: str
    workers: int
    port: int
    """Of the progress endpoint, on this machine."""
    seconds: float


class Flood:
    """Everything that is counted, and the numbers that make each attempt another one."""

    def __init__(self, target: FloodTarget, api: client.Client) -> None:
        self.target = target
        self.api = api
        self.counts: collections.Counter[str] = collections.Counter()
        self.numbers = itertools.count()
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE

    def url(self, job: str) -> str:
        """Return where a job's progress is reported."""
        path = progress_report.path(self.target.namespace, job)
        return f"https://127.0.0.1:{self.target.port}{path}"

    def token(self) -> str:
        """Return a token that looks like one of a job, and was never sent before."""
        claims = {"aud": ["tfparallel.dev/none"], "jti": next(self.numbers)}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"head.{payload}.signature"


async def change_pods(flood: Flood) -> None:
    """Write the status of the job's pods, as fast as the API server takes it."""
    target = flood.target
    while True:
        number = next(flood.numbers)
        pod = f"{target.job}-worker-{number % target.workers}"
        path = resources.PODS.path(target.namespace, pod, "status")
        with contextlib.suppress(errors.ApiError):
            await flood.api.patch(path, {"status": {"message": str(number)}})
            flood.counts["events"] += 1


async def change_job(flood: Flood) -> None:
    """Write an annotation of the job, as fast as the API server takes it."""
    path = resources.JOBS.path(flood.target.namespace, flood.target.job)
    while True:
        change = {"metadata": {"annotations": {"flood": str(next(flood.numbers))}}}
        with contextlib.suppress(errors.ApiError):
            await flood.api.patch(path, change)
            flood.counts["events"] += 1


async def send_tokens(flood: Flood) -> None:
    """Report with one wrong token after another, of the job and of one that is not there."""
    urls = itertools.cycle((flood.url(flood.target.job), flood.url("nobody")))
    source = f"127.0.0.{2 + next(flood.numbers) % SOURCES}"
    connector = aiohttp.TCPConnector(ssl=flood.tls, local_addr=(source, 0))
    async with aiohttp.ClientSession(connector=connector) as http:
        while True:
            headers = {"Authorization": f"Bearer {flood.token()}"}
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.post(next(urls), json={"step": 1}, headers=headers) as answer:
                    flood.counts["tokens"] += 1
                    flood.counts[f"status {answer.status}"] += 1


async def upload(flood: Flood) -> None:
    """Report what is far too large."""

    url = flood.url(flood.target.job)

    async def content() -> AsyncIterator[bytes]:
        for _ in range(UPLOAD_CHUNKS):
            flood.counts["bytes"] += len(CHUNK)
            yield CHUNK

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=flood.tls)) as http:
        while True:
            headers = {"Authorization": f"Bearer {flood.token()}"}
            flood.counts["uploads"] += 1
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with http.post(url, data=content(), headers=headers):
                    pass


async def trickle(flood: Flood) -> None:
    """Begin a request, and never come to its end."""
    while True:
        flood.counts["slow"] += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            _, writer = await asyncio.open_connection("127.0.0.1", flood.target.port, ssl=flood.tls)
            writer.write(b"POST / HTTP/1.1\r\n")
            while not writer.is_closing():
                writer.write(b"x: y\r\n")
                await writer.drain()
                await asyncio.sleep(1)


ATTACKS: tuple[tuple[attacking.Attack[Flood], int], ...] = (
    (change_pods, POD_WRITERS),
    (change_job, JOB_WRITERS),
    (send_tokens, SOURCES * SENDERS),
    (upload, UPLOADS),
    (trickle, SLOW),
)


async def run(target: FloodTarget) -> dict[str, float]:
    """Attack, and return the counts with the seconds that they took."""
    async with client.Client(credentials.find(target.kubeconfig)) as api:
        flood = Flood(target, api)
        seconds = await attacking.run(ATTACKS, flood, target.seconds)
    return {**flood.counts, "seconds": seconds}


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # Connections break: that is the point.
    # The outside world runs elsewhere: it gets what the cluster and the operator leave.
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    print(json.dumps(asyncio.run(run(FloodTarget(**json.loads(sys.argv[1]))))))
