"""What a token may cost the API server, and what a caller without one learns."""

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import test_utils

from testing import waiting
from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.reports import endpoint, tokens
from tfparallel_operator.engine.write import publisher

AUDIENCE = "tfparallel.dev/job-uid"


def token(audience: str = AUDIENCE, salt: int = 0) -> str:
    claims = json.dumps({"aud": [audience], "jti": str(salt)}).encode()
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


class SlowReviewer(client.Client):
    """An API server that answers no review before it may."""

    def __init__(self) -> None:
        self.reviews = 0
        self.at_once = 0
        self.most = 0
        self.answering = asyncio.Event()

    async def create(
        self,
        resource: resources.Resource,
        namespace: str | None,
        manifest: Mapping[str, Any],
        **more: Any,
    ) -> client.Object:
        self.reviews += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.answering.wait()
        self.at_once -= 1
        return {"status": {"authenticated": False}}


async def test_what_is_no_token_of_the_job_is_never_asked_about() -> None:
    reviewer = SlowReviewer()
    store = tokens.Tokens(reviewer)
    foreign = token("https://kubernetes.default.svc")
    for garbage in (
        "",
        "x",
        "a.b.c",
        "a.e30.c",
        "a.MTA.c",
        "ä.ö.ü",
        foreign,
        token(f"{AUDIENCE}x"),
    ):
        assert await store.find_pod(garbage, AUDIENCE, "10.0.0.1") is None
    assert reviewer.reviews == 0


async def test_few_reviews_wait_for_the_api_server_at_the_same_time() -> None:
    reviewer = SlowReviewer()
    store = tokens.Tokens(reviewer)
    many = [
        asyncio.create_task(store.find_pod(token(salt=salt), AUDIENCE, f"10.0.0.{salt}"))
        for salt in range(tokens.MAX_WAITING + 1)
    ]
    done, _ = await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
    assert [type(task.exception()) for task in done] == [errors.Unavailable]
    reviewer.answering.set()
    await asyncio.gather(*many, return_exceptions=True)
    assert reviewer.most == tokens.MAX_REVIEWS
    assert reviewer.reviews == tokens.MAX_WAITING


async def test_a_source_that_sends_many_tokens_delays_only_itself() -> None:
    reviewer = SlowReviewer()
    store = tokens.Tokens(reviewer)
    flood = [
        asyncio.create_task(store.find_pod(token(salt=salt), AUDIENCE, "10.0.0.1"))
        for salt in range(tokens.MAX_WAITING_OF_SOURCE + 1)
    ]
    done, _ = await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    assert [type(task.exception()) for task in done] == [errors.Unavailable]
    other = asyncio.create_task(store.find_pod(token(), AUDIENCE, "10.0.0.2"))
    await waiting.idle()
    assert reviewer.reviews == 2, "one of each source"
    reviewer.answering.set()
    await asyncio.gather(*flood, other, return_exceptions=True)
    assert not store._sources


async def test_a_token_that_is_sent_many_times_at_once_is_asked_about_once() -> None:
    reviewer = SlowReviewer()
    store = tokens.Tokens(reviewer)
    many = [asyncio.create_task(store.find_pod(token(), AUDIENCE, "10.0.0.1")) for _ in range(9)]
    await waiting.idle()
    reviewer.answering.set()
    assert await asyncio.gather(*many) == [None] * 9
    assert reviewer.reviews == 1


async def test_a_bad_token_is_asked_about_once_in_a_while() -> None:
    reviewer = SlowReviewer()
    reviewer.answering.set()
    now = 0.0
    store = tokens.Tokens(reviewer, lambda: now)
    for _ in range(3):
        assert await store.find_pod(token(), AUDIENCE, "10.0.0.1") is None
    assert reviewer.reviews == 1
    now = tokens.INVALID_SECONDS + 1
    assert await store.find_pod(token(), AUDIENCE, "10.0.0.1") is None
    assert reviewer.reviews == 2


async def test_without_a_token_nobody_learns_which_jobs_there_are() -> None:
    world = MemoryCluster()
    reviewer = SlowReviewer()
    reviewer.answering.set()
    async with world.running(objects.job()):
        store, children = world.engine.jobs, world.engine.children
        writer = publisher.Publisher(world.api, store)
        reports = endpoint.Endpoint(store, children, tokens.Tokens(reviewer), writer, print)
        server = test_utils.TestServer(reports.application())
        async with test_utils.TestClient(server) as caller:
            answers = set()
            for job in ("digits", "nobody"):
                for value in ("garbage", token(), token("tfparallel.dev/other")):
                    path = (
                        f"/apis/tfparallel.dev/v1alpha1/namespaces/default/tfparalleljobs/{job}"
                        "/progress"
                    )
                    headers = {"Authorization": f"Bearer {value}"}
                    async with caller.post(path, json={"step": 1}, headers=headers) as answer:
                        answers.add((answer.status, await answer.text()))
    [(status, text)] = answers
    assert status == 401
    assert "job-uid" not in text
