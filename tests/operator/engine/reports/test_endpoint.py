"""The progress endpoint: it accepts right tokens alone; what it writes, and when."""

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import ssl
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from testing import waiting
from testing.operator import namespaces, objects, progress_site
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.pods import config
from tfparallel_operator.engine.reports import tls
from tfparallel_operator.engine.run import engine
from tfparallel_operator.engine.write import publisher
from tfparallel_trainer.contract import limits, verification

PLACEMENT = {
    "mesh": {
        "data": 2,
        "stage": 2,
        "spatial": 1,
        "tensor": 1,
        "microbatches": 4,
        "schedule": "GPipe",
        "auto": False,
        "shardOptimizer": False,
        "recompute": False,
        "cuts": [],
    },
    "reasons": [],
    "stages": [
        {
            "stage": stage,
            "devices": [f"worker-{stage}/GPU:0", f"worker-{stage + 2}/GPU:0"],
            "deviceCount": 2,
            "layers": "conv to dense",
            "layerCount": 3,
            "parameterBytes": 2**40,
            "busySeconds": "0.25",
        }
        for stage in (0, 1)
    ],
}


@contextlib.asynccontextmanager
async def _site(namespace: Namespace) -> AsyncIterator[progress_site.Site]:
    [port] = ports.allocate(1)
    async with namespace.operator(progress_host=progress_site.HOST, progress_port=port):
        await namespace.create_job()
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        path = resources.CONFIG_MAPS.path(namespace.name, "digits-tfparallel")
        authorities = (await namespace.api.get(path))["data"][config.CA_FILE_KEY]
        context = ssl.create_default_context(cadata=authorities)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as http:
            yield progress_site.Site(namespace, port, http)


async def test_a_report_with_the_pods_token_is_seen_by_kubectl(namespace: Namespace) -> None:
    async with _site(namespace) as site:
        token = await site.token("digits-chief-0", await site.audience())
        report = progress_site.REPORT | {"placement": PLACEMENT}
        assert await site.send(token, report) == (202, "")

        async def shown() -> bool:
            line = namespace.kubectl("get", "tfpj", "digits").splitlines()[1]
            return line.split()[4:8] == ["40", "40", "0.25", "12s"]

        await waiting.until_async(shown, "step, percent, loss and ETA are shown")
        progress_of_job = (await namespace.status())["progress"]
        arrived = datetime.datetime.fromisoformat(progress_of_job.pop("lastUpdateTime"))
        assert abs((datetime.datetime.now(datetime.UTC) - arrived).total_seconds()) < 60
        assert progress_of_job == {**progress_site.REPORT, "epoch": 0}
        assert (await namespace.status())["placement"] == PLACEMENT
        job = await namespace.job()
        owners = {
            entry["manager"]: entry["fieldsV1"]
            for entry in job["metadata"]["managedFields"]
            if entry.get("subresource") == "status"
        }
        fields = set(owners[names.PROGRESS_FIELD_MANAGER]["f:status"])
        assert fields == {"f:progress", "f:placement"}
        assert not fields & set(owners[names.FIELD_MANAGER]["f:status"])


async def test_reports_that_come_too_fast_are_not_lost_and_the_last_is_written_at_once(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = functools.partial(publisher.Publisher, interval=600.0)
    monkeypatch.setattr(publisher, "Publisher", rare)
    async with _site(namespace) as site:
        token = await site.token("digits-chief-0", await site.audience())
        for step in (10, 20, 100):
            report = {"step": step, "totalSteps": 100}
            assert await site.send_in_turn(token, report) == (202, "")
        await namespace.until_status(
            "the last report is written", lambda now: now.get("progress", {}).get("step") == 100
        )


async def test_everyone_else_is_refused_with_a_reason(namespace: Namespace) -> None:
    async with _site(namespace) as site:
        await namespace.create_job(objects.job("other", workers=0))

        async def there() -> bool:
            return "other-chief-0" in await namespace.pods()

        await waiting.until_async(there, "the other job's pod exists")
        audience, foreign = await site.audience(), await site.audience("other")
        right = await site.token("digits-chief-0", audience)
        wrong_audience = await site.token("digits-chief-0", "https://kubernetes.default.svc")
        others = await site.token("other-chief-0", foreign)
        # The other job's pod cannot have this token, but whoever may ask for tokens can.
        others_with_audience = await site.token("other-chief-0", audience)
        cases: list[tuple[str | None, Any, str, int, str]] = [
            (None, None, "digits", 401, "send the pod's projected token"),
            ("nonsense", None, "digits", 401, "is not valid for audience"),
            (wrong_audience, None, "digits", 401, "is not valid for audience"),
            (others, None, "digits", 401, "is not valid for audience"),
            (others_with_audience, None, "digits", 403, "does not belong to job 'digits'"),
            (right, None, "nobody", 404, "there is no job 'nobody'"),
            (right, {"step": -1}, "digits", 422, "step: received -1"),
            (right, {"step": 1, "loss": 2}, "digits", 422, "loss: received 2"),
            (right, {"step": 10**30}, "digits", 422, "step: received 1000000"),
            (right, {"step": 2**63}, "digits", 422, "step: received 9223372036854775808"),
            (right, {"step": 1, "eta": "\x1b[2J"}, "digits", 422, r"control character \x1b"),
            (right, {"step": 1, "pad": "x" * 40_000}, "digits", 413, "larger than 32768 bytes"),
        ]
        for token, report, job, status, reason in cases:
            code, sentence = await site.send_in_turn(token, report, job)
            assert (code, reason in sentence) == (status, True), sentence
        assert "progress" not in await namespace.status()
        assert await site.send_in_turn(right) == (202, "")
        await namespace.until_status("a right one is written after all", _has_progress)


async def test_the_api_server_takes_every_report_that_the_contract_takes(
    namespace: Namespace,
) -> None:
    stage = {
        "stage": limits.MAX_PARTS,
        "devices": ["d" * limits.MAX_NAME_LETTERS] * limits.MAX_STAGE_DEVICES,
        "deviceCount": limits.MAX_PARTS,
        "layers": "l" * limits.MAX_LAYERS_LETTERS,
        "layerCount": limits.MAX_PARTS,
        "parameterBytes": limits.MAX_COUNT,
        "busySeconds": "1e-300",
        "plannedSeconds": "9" * limits.MAX_NUMBER_LETTERS,
    }
    mesh = PLACEMENT["mesh"]
    assert isinstance(mesh, dict)
    placement = {
        "mesh": {**mesh, "data": 4095, "microbatches": 4096},
        "stages": [stage] * limits.MAX_STAGES,
        "reasons": ["r" * limits.MAX_REASON_LETTERS] * limits.MAX_REASONS,
        "memory": {
            "stage": limits.MAX_PARTS,
            "peakBytes": limits.MAX_COUNT,
            "deviceBytes": 0,
            "largerDevice": "d" * limits.MAX_NAME_LETTERS,
            "changes": [
                {
                    "setting": "Devices",
                    "count": limits.MAX_COUNT,
                    "mesh": "m" * limits.MAX_MESH_LETTERS,
                }
            ]
            * limits.MAX_FITTING_CHANGES,
        },
    }
    compared = {"difference": "1.2e-300", "limit": "9" * limits.MAX_NUMBER_LETTERS}
    verified = {
        "checks": limits.MAX_COUNT,
        "step": limits.MAX_COUNT,
        "compared": [
            {"quantity": quantity.value, **compared} for quantity in verification.Quantity
        ],
        "omitted": ["層" * limits.MAX_OMISSION_LETTERS] * limits.MAX_OMISSIONS,
    }
    names_of_metrics = [f"{'層' * 9}{'m' * 51}{number:04}" for number in range(limits.MAX_METRICS)]
    report = {
        "step": limits.MAX_COUNT,
        "totalSteps": limits.MAX_COUNT,
        "epoch": limits.MAX_COUNT,
        "percent": 100,
        "metrics": dict.fromkeys(names_of_metrics, "Ω" * limits.MAX_NUMBER_LETTERS),
    }
    async with _site(namespace) as site:
        token = await site.token("digits-chief-0", await site.audience())
        for sent in (report, {"step": 0, "placement": placement, "verification": verified}):
            assert await site.send_in_turn(token, sent) == (202, "")

            async def is_written(step: object = sent["step"]) -> bool:
                return bool((await namespace.status()).get("progress", {}).get("step") == step)

            await waiting.until_async(is_written, "it is written")
        status = await namespace.status()
        assert (status["placement"], status["verification"]) == (placement, verified)
        separate = {
            "replica": "r" * limits.MAX_NAME_LETTERS,
            "peers": limits.MAX_PARTS,
            "method": "m" * limits.MAX_NAME_LETTERS,
            "place": "層" * limits.MAX_PLACE_LETTERS,
        }
        sent = {"step": 0, "separateTraining": separate}
        assert await site.send_in_turn(token, sent) == (202, "")
        status = await namespace.until_status(
            "a condition follows from what replicas see",
            lambda now: (
                "SeparateTraining" in [condition["type"] for condition in now["conditions"]]
            ),
        )
        assert "progress" not in status
        del status["separateTraining"]["lastUpdateTime"]
        assert status["separateTraining"] == separate


def _has_progress(status: namespaces.Body) -> bool:
    return "progress" in status


async def test_a_pod_of_an_earlier_attempt_is_no_longer_heard(namespace: Namespace) -> None:
    async with _site(namespace) as site:
        # A finalizer keeps the pod, as a node that does not answer would.
        namespace.kubectl(
            *("patch", "pod", "digits-chief-0", "--type=merge", "-p"),
            '{"metadata":{"finalizers":["tests.example/hold"]}}',
        )
        token = await site.token("digits-chief-0", await site.audience())
        namespace.kubectl("delete", "pod", "digits-worker-0", "--grace-period=0", "--force")
        await namespace.until_status("the second attempt", lambda now: now.get("attempt") == 2)
        answers: list[tuple[int, str]] = []

        async def refused() -> bool:
            answers.append(await site.send(token))
            return answers[-1][0] != 202

        # The operator may not have heard yet what it has written itself.
        await waiting.until_async(refused, "the report is refused")
        status, sentence = answers[-1]
        # The API server may hold the token of a pod that is being deleted for invalid already.
        assert status in (401, 403)
        assert sentence.startswith(("pod digits-chief-0 is of attempt 1; 2 runs", "the token"))
        namespace.kubectl(
            *("patch", "pod", "digits-chief-0", "--type=merge", "-p"),
            '{"metadata":{"finalizers":null}}',
        )


async def test_the_certificates_are_kept_and_issued_once(namespace: Namespace) -> None:
    certificates = await asyncio.gather(
        *(tls.ensure(namespace.api, namespace.name, "keys", "operator.svc") for _ in range(3))
    )
    assert certificates[0] == certificates[1] == certificates[2]
    assert (
        await tls.ensure(namespace.api, namespace.name, "keys", "operator.svc") == certificates[0]
    )
    moved = await tls.ensure(namespace.api, namespace.name, "keys", "elsewhere.svc")
    assert moved.authorities == certificates[0].authorities
    assert moved.certificate != certificates[0].certificate
    assert await tls.ensure(namespace.api, namespace.name, "keys", "elsewhere.svc") == moved


NOW = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)


def test_a_certificate_is_renewed_in_time_under_the_same_authority() -> None:
    first = tls.renew(None, "operator.svc", NOW)
    assert tls.renew(first, "operator.svc", NOW + datetime.timedelta(days=200)) is first
    later = tls.renew(first, "operator.svc", NOW + datetime.timedelta(days=300))
    assert later.authorities == first.authorities
    assert later.certificate != first.certificate


def test_a_new_authority_is_trusted_beside_the_old_one_until_that_ends() -> None:
    first = tls.renew(None, "operator.svc", NOW)
    second = tls.renew(first, "operator.svc", NOW + datetime.timedelta(days=3000))
    assert second.authorities.endswith(first.authorities)
    assert second.authorities.count("BEGIN CERTIFICATE") == 2
    third = tls.renew(second, "operator.svc", NOW + datetime.timedelta(days=6000))
    assert third.authorities.count("BEGIN CERTIFICATE") == 2
    assert not third.authorities.endswith(first.authorities)


async def test_a_new_authority_reaches_jobs_that_run_without_a_restart(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "CERTIFICATE_CHECK", datetime.timedelta(seconds=0.2))
    path = resources.CONFIG_MAPS.path(namespace.name, config.name("digits"))

    async def authorities() -> str:
        return str((await namespace.api.get(path))["data"][config.CA_FILE_KEY])

    async with _site(namespace) as site:
        before = await authorities()
        namespace.kubectl("delete", "secret", "tfparallel-operator-tls")
        after = await waiting.until_async(
            authorities, "the ConfigMap has the new authority", when=lambda now: now != before
        )
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=after))
        async with aiohttp.ClientSession(connector=connector) as http:
            trusting = dataclasses.replace(site, http=http)
            token = await trusting.token("digits-chief-0", await trusting.audience())
            assert await trusting.send(token) == (202, "")
