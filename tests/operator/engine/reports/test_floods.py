"""What a flood costs, in counts, on a real API server."""

import asyncio
import base64
import collections
import json
import ssl
from typing import Any

import aiohttp
import pytest

from testing import waiting
from testing.operator import namespaces, objects, progress_site
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core.pods import config, progress_report
from tfparallel_operator.engine.reports import tokens

GARBAGE = 64
RENEWALS = 3


def _garbage(number: int) -> str:
    """Return a token that looks like one of a job."""
    claims = json.dumps({"aud": [progress_report.audience("none")], "jti": number}).encode()
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


async def test_each_wrong_token_is_reviewed_once_and_nobody_learns_which_jobs_there_are(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed: list[str] = []
    review = tokens.Tokens._review

    async def count(reviewer: tokens.Tokens, token: str, audience: str) -> tokens.TokenPod | None:
        reviewed.append(token)
        return await review(reviewer, token, audience)

    monkeypatch.setattr(tokens.Tokens, "_review", count)
    monkeypatch.setattr(tokens, "INVALID_SECONDS", 3600.0)
    [port] = ports.allocate(1)
    async with namespace.operator(progress_host=progress_site.HOST, progress_port=port):
        await namespace.create_job()
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        path = resources.CONFIG_MAPS.path(namespace.name, "digits-tfparallel")
        authorities = (await namespace.api.get(path))["data"][config.CA_FILE_KEY]
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authorities))
        async with aiohttp.ClientSession(connector=connector) as http:
            site = progress_site.Site(namespace, port, http)
            # More of them than may wait at once, so some are told to come again.
            for _ in range(2):
                answers = await asyncio.gather(
                    *(site.send(_garbage(number), job="nobody") for number in range(GARBAGE))
                )
                statuses = collections.Counter(status for status, _ in answers)
                assert statuses.keys() <= {401, 503}
                assert len(reviewed) == len(set(reviewed)) >= statuses[401]
            refusals = {
                await site.send(token, job=job)
                for token in ("garbage", reviewed[0])
                for job in ("digits", "nobody")
            }
            assert [status for status, _ in refusals] == [401]
            assert len(reviewed) == len(set(reviewed))


async def test_the_lease_is_renewed_while_every_slot_of_the_jobs_is_taken(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, hung = asyncio.Event(), 0
    request = client.Client._request

    async def hang(api: client.Client, verb: str, path: str, *arguments: Any, **more: Any) -> Any:
        nonlocal hung
        # The first pod of each role is created before the others.
        is_pod = verb == "create" and path.endswith("/pods")
        if is_pod and not arguments[1]["metadata"]["name"].endswith("-0"):
            async with api._slots:
                hung += 1
                await release.wait()
                hung -= 1
        return await request(api, verb, path, *arguments, **more)

    def all_taken() -> bool:
        return hung == client.MAX_IN_FLIGHT

    monkeypatch.setattr(client.Client, "_request", hang)
    async with namespace.operator(lease="operator", lease_seconds=3, instance="one"):
        for number in range(4):
            await namespace.create_job(objects.job(f"wide-{number}", workers=20))
        await waiting.until_in_loop(all_taken, "every slot is taken by a creation of a pod")
        version = (await namespace.api.list(resources.LEASES, namespace.name)).version
        renewals = 0
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            async for event in namespace.api.watch(resources.LEASES, namespace.name, version):
                assert event.object["spec"]["holderIdentity"] == "one"
                renewals += 1
                if renewals == RENEWALS:
                    break
        assert all_taken()
        release.set()
        await namespace.until_status("its pods exist", _has_all_pods, "wide-3")


def _has_all_pods(status: namespaces.Body) -> bool:
    return bool(status.get("replicas", {}).get("Worker", {}).get("seen") == "0-19")
