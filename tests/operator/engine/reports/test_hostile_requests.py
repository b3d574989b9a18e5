"""What anybody may send to the progress endpoint: who learns what, and what it costs."""

import asyncio
import base64
import contextlib
import dataclasses
import gzip
import json
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from testing import clock, waiting
from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core.pods import progress_report
from tfparallel_operator.engine.reports import endpoint, serving, tokens
from tfparallel_operator.engine.telemetry import logs
from tfparallel_operator.engine.write import publisher
from tfparallel_trainer.contract import limits

UNKNOWN = "tfparallel.dev/anything"


def make_token(audience: Any, namespace: str = "default", pod: str = "a-pod") -> str:
    """Return a token that `CredulousReviewer` believes."""
    claims = json.dumps({"aud": audience, "namespace": namespace, "pod": pod}).encode()
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


class CredulousReviewer(client.Client):
    """An API server that believes each token's claims."""

    def __init__(self) -> None:
        self.reviews = 0

    async def create(
        self,
        resource: resources.Resource,
        namespace: str | None,
        manifest: Mapping[str, Any],
        **more: Any,
    ) -> client.Object:
        self.reviews += 1
        payload = manifest["spec"]["token"].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        user = {
            "username": f"system:serviceaccount:{claims['namespace']}:default",
            "extra": {tokens.POD_UID: [claims["pod"]]},
        }
        audiences = manifest["spec"]["audiences"]
        return {"status": {"authenticated": True, "audiences": audiences, "user": user}}


class Writer(publisher.Publisher):
    """Keeps what it is given, or fails."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.failure: Exception | None = None

    def submit(self, report: publisher.Report) -> None:
        if self.failure is not None:
            raise self.failure
        self.steps.append(report.content.step)


@dataclasses.dataclass
class Site:
    """An endpoint on loopback, the job `digits` of namespace default, and one of namespace b."""

    address: tuple[str, int]
    audience: str
    pod: str
    reviewer: CredulousReviewer
    writer: Writer
    virtual_time: clock.Clock

    @property
    def right(self) -> str:
        return make_token([self.audience], pod=self.pod)

    async def post(
        self,
        token: str | bytes,
        body: bytes = b'{"step": 1}',
        job: str = "digits",
        namespace: str = "default",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Send raw bytes; return status, headers and content of the answer."""
        path = progress_report.path(namespace, job).encode("latin-1")
        credential = token if isinstance(token, bytes) else token.encode()
        sent = {"Host": "x", "Connection": "close"}
        if "Transfer-Encoding" not in (headers or {}):
            sent["Content-Length"] = str(len(body))
        lines = [b"POST " + path + b" HTTP/1.1", b"Authorization: Bearer " + credential]
        lines += [f"{key}: {value}".encode() for key, value in {**sent, **(headers or {})}.items()]
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            reader, writer = await asyncio.open_connection(*self.address)
            writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            head, _, content = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        status_line, *header_lines = head.decode().split("\r\n")
        received = dict(line.split(": ", 1) for line in header_lines)
        is_json = "json" in received["Content-Type"]
        return int(status_line.split()[1]), received, json.loads(content) if is_json else {}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REFUSAL_SECONDS", 0.0)


@contextlib.asynccontextmanager
async def _site() -> AsyncIterator[Site]:
    world, virtual_time = MemoryCluster(), clock.Clock()
    async with world.running(objects.job()):
        await world.api.create(resources.JOBS, "b", objects.job("normal"))
        await world.engine.run_until_quiet(seconds=0)
        [uid] = [
            job["metadata"]["uid"]
            for job in world.api.items(resources.JOBS)
            if job["metadata"]["name"] == "digits"
        ]
        [pod] = [
            pod["metadata"]["uid"]
            for pod in world.api.items(resources.PODS)
            if pod["metadata"]["name"] == "digits-chief-0"
        ]
        reviewer, writer = CredulousReviewer(), Writer()
        reports = endpoint.Endpoint(
            world.engine.jobs,
            world.engine.children,
            tokens.Tokens(reviewer),
            writer,
            world.engine.queue.add,
            turns=endpoint.SendInterval(limits.MIN_SECONDS_BETWEEN_REPORTS, virtual_time.monotonic),
        )
        with socket.create_server(("127.0.0.1", 0)) as listener:
            task = asyncio.create_task(serving.serve_on(listener, reports.application()))
            audience = progress_report.audience(uid)
            yield Site(listener.getsockname(), audience, pod, reviewer, writer, virtual_time)
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.parametrize(
    "token",
    [
        b"a.b\xff.c",
        b"\xc3\xa4.e30.c",
        b"",
        make_token("tfparallel.dev/\ud800").encode(),
        make_token(["tfparallel.dev/a\x00"]).encode(),
        make_token("tfparallel.dev/" + "9" * 1000).encode(),
        make_token({"aud": 1}).encode(),
        make_token(10**4000).encode(),
        make_token([["tfparallel.dev/x"], None, 7]).encode(),
        b"a." + base64.urlsafe_b64encode(b"[" * 3000) + b".c",
        b"a." + base64.urlsafe_b64encode(b'{"aud": "\xff"}') + b".c",
    ],
    ids=range(11),
)
async def test_bytes_that_are_no_token_are_refused_and_cost_no_review(
    token: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with _site() as site:
        for job in ("digits", "nosuch"):
            assert (await site.post(token, job=job))[0] == 401
            assert (await site.post(site.right.encode() + b"\xff", job=job))[0] == 401
        assert site.reviewer.reviews == 0
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_nobody_learns_of_the_jobs_of_another_namespace() -> None:
    async with _site() as site:
        answers = []
        for token in (make_token([UNKNOWN]), site.right, make_token([UNKNOWN], pod=site.pod)):
            for job in ("normal", "nosuch"):
                before = site.reviewer.reviews
                status, _, content = await site.post(token, job=job, namespace="b")
                answers.append((status, content["error"]))
                asked = site.reviewer.reviews - before
                assert asked == (1 if job == "normal" else 0), "it is cached for both alike"
        assert {status for status, _ in answers} == {401}
        assert len(set(answers)) == 1


async def test_only_a_pod_of_a_known_job_learns_that_there_is_no_such_job() -> None:
    async with _site() as site:
        assert (await site.post(site.right, job="nosuch"))[0] == 404
        for stranger in (
            make_token([UNKNOWN], pod=site.pod),
            make_token([site.audience], pod="another-pod"),
            make_token([site.audience], namespace="b", pod=site.pod),
        ):
            site.virtual_time.advance(limits.MIN_SECONDS_BETWEEN_REPORTS)
            assert (await site.post(stranger, job="nosuch"))[0] == 401


async def test_a_pod_that_asks_for_jobs_again_and_again_costs_no_search() -> None:
    async with _site() as site:
        answers = [(await site.post(site.right, job="nosuch"))[0] for _ in range(5)]
        assert answers == [404, 429, 429, 429, 429]


async def test_a_flood_of_refusals_over_one_connection_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests are pipelined: without the pause, all of them would be answered at once."""
    monkeypatch.setattr(endpoint, "REFUSAL_SECONDS", 0.1)
    async with _site() as site:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection(*site.address)
        path = progress_report.path("default", "digits").encode()
        lines = (b"POST " + path, b"GET " + path, b"GET /other")
        requests = b"".join(line + b" HTTP/1.1\r\nHost: x\r\n\r\n" for line in lines)
        writer.write(requests + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = re.findall(rb"HTTP/1.1 (\d+)", await reader.read())
        writer.close()
        assert answers == [b"401", b"405", b"404", b"404"]
        assert time.monotonic() - began > 4 * 0.1 * 0.99


async def test_a_pod_of_another_namespace_is_not_the_jobs_whatever_it_claims() -> None:
    async with _site() as site:
        stranger = make_token([site.audience], namespace="b", pod=site.pod)
        assert (await site.post(stranger))[0] == 401
        assert (await site.post(site.right))[0] == 202
        assert site.writer.steps == [1]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\x1f\x8b false", {"Content-Encoding": "gzip"}, 415),
        (gzip.compress(b'{"step": 1}'), {"Content-Encoding": "gzip"}, 415),
        (b"x", {"Content-Encoding": "\x7f"}, 400),
        (b"\xff\xfe", {}, 422),
        (b"[" * 30_000, {}, 422),
        (b'{"step": ' + b"9" * 30_000 + b"}", {}, 422),
        (b'{"step": 1, "step": "\\ud800"}', {}, 422),
        (b'{"step": 1, "metrics": {"a": [], "' + b"x" * 20_000 + b'": 1}}', {}, 422),
    ],
    ids=range(8),
)
async def test_a_body_that_is_no_report_is_refused_in_a_sentence(
    body: bytes, headers: Mapping[str, str], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with _site() as site:
        answer = await site.post(site.right, body, headers=headers)
        assert answer[0] == status
        assert len(answer[2].get("error", "")) < 500
        site.virtual_time.advance(limits.MIN_SECONDS_BETWEEN_REPORTS)
        assert (await site.post(site.right))[0] == 202
    assert all(record.exc_info is None for record in caplog.records)


async def test_a_body_of_broken_chunks_is_refused() -> None:
    async with _site() as site:
        headers = {"Transfer-Encoding": "chunked"}
        status, _, content = await site.post(site.right, b"zz\r\n", headers=headers)
        assert status == 400, content


async def test_a_job_reports_once_a_second() -> None:
    async with _site() as site:
        for step in range(3):
            body = json.dumps({"step": step}).encode()
            assert (await site.post(site.right, body))[0] == 202
            for _ in range(3):
                status, headers, content = await site.post(site.right, body)
                assert (status, headers["Retry-After"]) == (429, "1")
                assert "has just arrived" in content["error"]
            site.virtual_time.advance(limits.MIN_SECONDS_BETWEEN_REPORTS)
        assert site.writer.steps == [0, 1, 2]


def test_of_a_turn_that_has_passed_nothing_is_kept() -> None:
    virtual_time = clock.Clock()
    turns = endpoint.SendInterval(1.0, virtual_time.monotonic)
    for number in range(1000):
        assert turns.take(f"job-{number}") == 0
        virtual_time.advance(0.25)
    assert len(turns._sent_at) <= 5


async def test_a_bug_in_one_request_is_one_line_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with _site() as site:
        for _ in range(logs.BRIEF_LINES + 5):
            site.writer.failure = KeyError("x" * 10_000)
            status, _, content = await site.post(site.right)
            assert (status, "the operator's log says why" in content["error"]) == (500, True)
            site.virtual_time.advance(limits.MIN_SECONDS_BETWEEN_REPORTS)
        site.writer.failure = None
        assert (await site.post(site.right))[0] == 202
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == logs.BRIEF_LINES
    assert all("a report was not handled: KeyError" in line.getMessage() for line in lines)
    assert all(len(line.getMessage()) < 1000 and line.exc_info is None for line in lines)
