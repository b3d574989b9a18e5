"""The route on which agents ask: who gets an answer, and what the operator does with the report."""

import collections
import contextlib
import dataclasses
import datetime
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiohttp import test_utils

from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from tests.operator.engine.reports.test_hostile_requests import (
    CredulousReviewer,
    Writer,
    make_token,
)
from tfparallel_operator.api import types
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import observation, replicas
from tfparallel_operator.core.pods import progress_report
from tfparallel_operator.engine.observe import agent_reports
from tfparallel_operator.engine.reports import endpoint, tokens
from tfparallel_trainer.contract import agents

WAIT = {"instruction": "Wait", "seconds": 0.25}
"""The answer to an agent of a job of three pods."""


@dataclasses.dataclass
class AgentSite:
    """An endpoint, and a job `digits` whose pods run and have agents."""

    world: MemoryCluster
    http: test_utils.TestClient[Any, Any]

    async def ask(
        self, pod: str, code: int, attempt: int = 1, job: str = "digits"
    ) -> tuple[int, Mapping[str, Any]]:
        """Ask as the agent of a pod does; return the status and the content of the answer."""
        [uid] = [item["metadata"]["uid"] for item in self.world.api.items(resources.JOBS)]
        [pod_uid] = [
            item["metadata"]["uid"] for item in self.world.pods if item["metadata"]["name"] == pod
        ]
        token = make_token([progress_report.audience(uid)], pod=pod_uid)
        run = agents.Run(attempt=attempt, replica_attempt=0)
        body = agents.RunEnd(run=run, code=code).model_dump(mode="json", by_alias=True)
        return await self.post(token, body, job)

    async def post(
        self, token: str, body: Mapping[str, Any], job: str = "digits"
    ) -> tuple[int, Mapping[str, Any]]:
        path = progress_report.agents_path("default", job)
        headers = {"Authorization": f"Bearer {token}"}
        async with self.http.post(path, json=body, headers=headers) as answer:
            content = await answer.json()
            return answer.status, {name: value for name, value in content.items() if value}


@contextlib.asynccontextmanager
async def _site(monkeypatch: pytest.MonkeyPatch, workers: int = 2) -> AsyncIterator[AgentSite]:
    monkeypatch.setattr(endpoint, "REFUSAL_SECONDS", 0.0)
    world = MemoryCluster()
    world.settings = {"progress_url": "https://operator.example"}
    job = objects.job(workers=workers, trainer={"epochs": 1})
    for role in job["spec"]["tfReplicaSpecs"].values():
        del role["template"]
    async with world.running(job):
        await world.start_pods()
        reports = endpoint.Endpoint(
            world.engine.jobs,
            world.engine.children,
            tokens.Tokens(CredulousReviewer()),
            Writer(),
            world.engine.queue.add,
        )
        server = test_utils.TestServer(reports.application())
        async with test_utils.TestClient(server) as http:
            yield AgentSite(world, http)


async def test_a_killed_trainer_is_replaced_in_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _site(monkeypatch) as site:
        before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in site.world.pods}
        assert await site.ask("digits-worker-0", 137) == (200, WAIT)
        await site.world.engine.run_until_quiet(seconds=0)
        assert site.world.status["attempt"] == 2
        assert "inPlace" not in site.world.status
        for pod in ("digits-chief-0", "digits-worker-1"):
            assert await site.ask(pod, 75) == (200, WAIT)
        await site.world.engine.run_until_quiet(seconds=0)
        assert site.world.status["inPlace"] == {"attempt": 2, "podsSince": 1}
        for pod in before:
            status, answer = await site.ask(pod, 75)
            assert (status, answer["instruction"], answer["run"]["attempt"]) == (200, "Run", 2)
        after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in site.world.pods}
        assert after == before
        assert site.world.status["restarts"]["failure"] == 1


async def test_a_lost_pod_costs_as_many_writes_in_a_gang_of_any_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await _writes_for_a_lost_pod(monkeypatch, 60) == await _writes_for_a_lost_pod(
        monkeypatch, 2
    )


async def _writes_for_a_lost_pod(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> Mapping[str, int]:
    """Lose a pod, and return how often each kind of write goes to each kind of object."""
    async with _site(monkeypatch, workers) as site:
        before = len(site.world.api.log)
        await site.world.vanish("digits-worker-0")
        others = [pod["metadata"]["name"] for pod in site.world.pods]
        assert len(others) == workers
        for _ in range(2):  # some ask again before the next attempt begins
            for pod in others:
                await site.ask(pod, 75)
            await site.world.engine.run_until_quiet(seconds=0)
        assert site.world.status["inPlace"] == {"attempt": 2, "podsSince": 1}
        writes = [request.split("/") for request in site.world.api.log[before:]]
        counts = collections.Counter(f"{request[0]}{request[-2]}" for request in writes)
        assert counts["create pods"] == 1
        return counts


async def test_whoever_is_no_pod_of_the_job_gets_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _site(monkeypatch) as site:
        [uid] = [item["metadata"]["uid"] for item in site.world.api.items(resources.JOBS)]
        end = {"run": {"attempt": 1, "replicaAttempt": 0}, "code": 137}
        stranger = make_token([progress_report.audience(uid)], pod="another")
        assert (await site.post(stranger, end))[0] == 403
        assert (await site.post("nonsense", end))[0] == 401
        assert (await site.post(stranger, end, job="nobody"))[0] == 401
        await site.world.engine.run_until_quiet(seconds=0)
        assert site.world.status["attempt"] == 1


@pytest.mark.parametrize(
    "change", [{"code": 256}, {"code": None}, {"run": {}}, {"message": "x" * 4097}, {"more": 1}]
)
async def test_a_malformed_report_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    async with _site(monkeypatch) as site:
        [uid] = [item["metadata"]["uid"] for item in site.world.api.items(resources.JOBS)]
        pod = site.world.pods[0]["metadata"]["uid"]
        end = {"run": {"attempt": 1, "replicaAttempt": 0}, "code": 137, **change}
        token = make_token([progress_report.audience(uid)], pod=pod)
        assert (await site.post(token, end))[0] == 422


def test_the_newest_reports_are_kept() -> None:
    pods = [
        observation.Pod(
            f"p-{number}",
            f"uid-{number}",
            replicas.Replica(types.Role.WORKER, number),
            1,
            0,
            observation.Phase.RUNNING,
        )
        for number in range(3)
    ]
    end = agents.RunEnd(run=agents.Run(attempt=1, replica_attempt=0), code=75)
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    reports = agent_reports.AgentReports(most=2)
    assert [reports.record(pod, end, now) for pod in (pods[0], pods[1], pods[0], pods[2])] == [
        True,
        True,
        False,
        True,
    ]
    assert set(reports.of_pods(tuple(pods))) == {"uid-0", "uid-2"}
