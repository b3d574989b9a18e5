"""Killing the operator after any of its writes, or failing any, changes nothing in the end."""

import dataclasses
from typing import Any

import pytest

from testing.operator import faults, memory_api, objects, scenarios
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.engine.run import lease
from tfparallel_operator.engine.workqueue import timers

pytestmark = pytest.mark.usefixtures("long_computation")

GANG = "a gang that fails once, loses a pod once and then succeeds"

PAUSES, PAUSE_SECONDS = 14, 2.0
"""How often time passes after a step of a troubled life, for each trouble costs a pause, and how
long; the pauses of the engine are cut to it."""


_TIMES = ("time", "since", "seconds")
"""Names of fields whose values follow the clock end with these."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What remains at the end, without what no two runs share."""

    status: Any
    pods: list[str]
    created: list[tuple[str, str, str]]
    others: list[str]


async def _play(
    cluster: MemoryCluster, scenario: scenarios.Scenario, pauses: int = 1, seconds: float = 10.0
) -> Outcome:
    """Live through a scenario; an operator that is killed starts again, without its fault."""
    await cluster.api.create(resources.JOBS, "default", scenario.job)
    steps = list(scenario.steps)
    try:
        await _live(cluster, steps, pauses, seconds)
    except* faults.Killed:
        cluster.fault = None
        await _live(cluster, steps, pauses, seconds)
    return _outcome(cluster.api)


async def _live(
    cluster: MemoryCluster, steps: list[scenarios.Step], pauses: int, seconds: float
) -> None:
    """Run the engine through the remaining steps; one that was begun is not done again."""
    async with cluster.running():
        for _ in range(pauses):
            await cluster.engine.run_until_quiet(seconds)
        while steps:
            steps.pop(0)(cluster.api)
            for _ in range(pauses):
                await cluster.engine.run_until_quiet(seconds)


def _outcome(api: memory_api.MemoryApi) -> Outcome:
    jobs = api.items(resources.JOBS)
    kinds = (
        resources.SERVICES,
        resources.CONFIG_MAPS,
        resources.NETWORK_POLICIES,
        resources.CLAIMS,
    )
    children = [child for kind in kinds for child in api.items(kind)]
    return Outcome(
        status=_timeless(jobs[0]["status"]) if jobs else None,
        pods=[
            f"{pod['metadata']['name']} {pod['status']['phase']}"
            for pod in api.items(resources.PODS)
        ],
        created=sorted(api.created),
        others=[child["metadata"]["name"] for child in children],
    )


def _timeless(value: Any) -> Any:
    """Leave out times, and the condition that reports refusals: it stays when they are over."""
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not k.lower().endswith(_TIMES)}
    if isinstance(value, list):
        return [_timeless(item) for item in value if not _refused(item)]
    return value


def _refused(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == names.ConditionType.CREATION_REFUSED


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
async def test_a_kill_after_any_write_leads_to_the_same_end(name: str) -> None:
    scenario = scenarios.SCENARIOS[name]
    undisturbed = MemoryCluster()
    expected = await _play(undisturbed, scenario)
    assert len(set(expected.created)) == len(expected.created)
    status = expected.status or {"state": "", "attempt": scenario.attempt}
    assert (status["state"], status["attempt"]) == (scenario.state, scenario.attempt)
    writes = len(undisturbed.api.log) - 1
    assert writes > 5
    for crash in range(1, writes + 1):
        cluster = MemoryCluster(faults.Crash(crash))
        assert await _play(cluster, scenario) == expected, f"killed after write {crash} of {writes}"
        assert cluster.fault is None, f"was not killed after write {crash} of {writes}"


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
async def test_every_write_that_meets_trouble_leads_to_the_same_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "LONGEST_PAUSE_SECONDS", PAUSE_SECONDS / 2)
    scenario = scenarios.SCENARIOS[name]
    times = (PAUSES, PAUSE_SECONDS)
    expected = await _play(MemoryCluster(), scenario, *times)
    assert expected.created == sorted(set(expected.created))
    for trouble in faults.Trouble:
        fault = faults.EverySecondWrite(trouble)
        assert await _play(MemoryCluster(fault), scenario, *times) == expected, trouble.value
        assert fault.count > 5


async def test_the_undisturbed_run_of_a_gang_is_what_it_should_be() -> None:
    outcome = await _play(MemoryCluster(), scenarios.SCENARIOS[GANG])
    assert outcome.status["state"] == "Succeeded"
    assert outcome.status["attempt"] == 3
    assert outcome.status["restarts"] == {"failure": 1, "disruption": 1}
    assert outcome.pods == ["digits-chief-0 Succeeded"]
    assert len(outcome.created) == 9
    assert outcome.others == ["digits", "digits-tfparallel", "digits-tfparallel"]


async def test_an_attempt_and_an_end_are_written_before_any_pod_is_deleted_for_them() -> None:
    cluster = MemoryCluster()
    await _play(cluster, scenarios.SCENARIOS[GANG])
    first = cluster.api.first_version
    second_attempt = first(resources.JOBS, lambda job: job["status"].get("attempt") == 2)
    ended = first(resources.JOBS, lambda job: job["status"].get("state") == "Succeeded")
    deleted = first(resources.PODS, lambda pod: "deletionTimestamp" in pod["metadata"])

    def cleaned(pod: client.Object) -> bool:
        last = pod["metadata"]["labels"][names.LABEL_ATTEMPT] == "3"
        return last and "deletionTimestamp" in pod["metadata"]

    assert 0 < second_attempt < deleted
    assert deleted < ended < first(resources.PODS, cleaned)


@pytest.mark.parametrize("name", [GANG, "a job that is removed after its time to live"])
async def test_before_every_write_it_is_asked_whether_it_still_may(name: str) -> None:
    asked: list[int] = []
    api = memory_api.MemoryApi()
    cluster = MemoryCluster(api=api, may_write=lambda: asked.append(len(api.log)))
    await _play(cluster, scenarios.SCENARIOS[name])
    written = [request for request in api.log[1:] if "/events/" not in request]
    recorded = len(api.log) - 1 - len(written)
    repeats = len(asked) - len(written) - recorded  # Events that exist are no writes.
    assert 0 <= repeats <= recorded
    assert [request.split()[0] for request in written].count("delete") > 0


async def test_an_operator_that_may_not_write_writes_nothing() -> None:
    def refuse() -> None:
        raise lease.Lost("not held any more")

    cluster = MemoryCluster(may_write=refuse)
    async with cluster.running(objects.job()):
        for _ in range(3):
            await cluster.engine.run_until_quiet()
    assert len(cluster.api.log) == 1


async def test_an_operator_that_loses_the_lease_after_a_status_records_no_event() -> None:
    api = memory_api.MemoryApi()

    def refuse_after_status() -> None:
        if api.log[-1].endswith("/status"):
            raise lease.Lost("not held any more")

    cluster = MemoryCluster(api=api, may_write=refuse_after_status)
    async with cluster.running(objects.job()):
        await cluster.engine.run_until_quiet()
    assert api.log[-1].endswith("/status")
    assert not any("/events/" in write for write in api.log)


async def test_the_status_of_a_new_job_follows_its_pods() -> None:
    cluster = MemoryCluster()
    async with cluster.running(objects.job()):
        await cluster.engine.run_until_quiet()
    writes = [write for write in cluster.api.log[1:] if "/events/" not in write]
    pods = [number for number, write in enumerate(writes) if "/pods/" in write]
    statuses = [number for number, write in enumerate(writes) if write.endswith("/status")]
    assert len(pods) == len(objects.job()["spec"]["tfReplicaSpecs"]) + 1
    assert statuses == [max(pods) + 1]


async def test_a_job_that_is_left_alone_is_not_written_to() -> None:
    cluster = MemoryCluster()
    async with cluster.running(objects.job()):
        await cluster.engine.run_until_quiet()
        await cluster.start_pods()
        await cluster.engine.run_until_quiet()
        before = len(cluster.api.log)
        for _ in range(5):
            await cluster.engine.sweeper.sweep()
            await cluster.engine.run_until_quiet(seconds=700)
        assert cluster.api.log[before:] == []
