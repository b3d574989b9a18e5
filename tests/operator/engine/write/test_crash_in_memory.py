"""Killing the operator after any of its writes, or failing any, changes nothing in the end."""

import dataclasses
from typing import Any

import pytest

from testing import clock
from testing.operator import crashing, memory_api, objects, scenarios, small_engine, troubled_api
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.engine.run import lease
from tfparallel_operator.engine.workqueue import timers

pytestmark = pytest.mark.usefixtures("long_computation")

GANG = "a gang that fails once, loses a pod once and then succeeds"

PAUSES, PAUSE_SECONDS = 14, 2.0
"""How often time passes after a step of a troubled life, for each trouble costs a pause, and how
long; the pauses of the engine are cut to it."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is left at the end, without what no two runs share."""

    status: Any
    pods: list[str]
    created: list[tuple[str, str, str]]
    others: list[str]


async def _play(
    api: memory_api.MemoryApi, scenario: scenarios.Scenario, crash: int | None = None
) -> Outcome:
    await api.create(resources.JOBS, "default", scenario.job)
    before = len(api.log)
    steps, time = list(scenario.steps), clock.Clock()
    try:
        await _live(crashing.CrashingApi(api, crash), api, time, steps)
    except* crashing.Killed:
        assert len(api.log) - before >= (crash or 0)
        await _live(api, api, time, steps)
    return _outcome(api)


async def _live(
    api: client.Client,
    store: memory_api.MemoryApi,
    time: clock.Clock,
    steps: list[scenarios.Step],
    pauses: int = 1,
    seconds: float = 10.0,
) -> None:
    """Run the engine through the steps that are left; one that was begun is not done again."""
    async with small_engine.SmallEngine(api, store, time).running() as engine:
        for _ in range(pauses):
            await engine.settle(seconds)
        while steps:
            steps.pop(0)(store)
            for _ in range(pauses):
                await engine.settle(seconds)


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
        return {k: _timeless(v) for k, v in value.items() if not k.lower().endswith("time")}
    if isinstance(value, list):
        return [_timeless(item) for item in value if not _refused(item)]
    return value


def _refused(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == names.Condition.CREATION_REFUSED


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
async def test_a_kill_after_any_write_leads_to_the_same_end(name: str) -> None:
    scenario = scenarios.SCENARIOS[name]
    undisturbed = memory_api.MemoryApi()
    expected = await _play(undisturbed, scenario)
    assert len(set(expected.created)) == len(expected.created)
    status = expected.status or {"state": "", "attempt": scenario.attempt}
    assert (status["state"], status["attempt"]) == (scenario.state, scenario.attempt)
    writes = len(undisturbed.log)
    assert writes > 5
    for crash in range(1, writes + 1):
        outcome = await _play(memory_api.MemoryApi(), scenario, crash)
        assert outcome == expected, f"killed after write {crash} of {writes}"


async def _play_through(
    scenario: scenarios.Scenario, trouble: troubled_api.Trouble | None
) -> Outcome:
    store, time = memory_api.MemoryApi(), clock.Clock()
    await store.create(resources.JOBS, "default", scenario.job)
    api = troubled_api.TroubledApi(store, trouble)
    await _live(api, store, time, list(scenario.steps), PAUSES, PAUSE_SECONDS)
    assert api.met > 5 or trouble is None
    return _outcome(store)


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
async def test_every_write_that_meets_trouble_leads_to_the_same_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers, "LONGEST_PAUSE_SECONDS", PAUSE_SECONDS / 2)
    scenario = scenarios.SCENARIOS[name]
    expected = await _play_through(scenario, None)
    assert expected.created == sorted(set(expected.created))
    for trouble in troubled_api.Trouble:
        assert await _play_through(scenario, trouble) == expected, trouble.value


async def test_the_undisturbed_run_of_a_gang_is_what_it_should_be() -> None:
    api = memory_api.MemoryApi()
    outcome = await _play(api, scenarios.SCENARIOS[GANG])
    assert outcome.status["state"] == "Succeeded"
    assert outcome.status["attempt"] == 3
    assert outcome.status["restarts"] == {"failure": 1, "disruption": 1}
    assert outcome.pods == ["digits-chief-0 Succeeded"]
    assert len(outcome.created) == 9
    assert outcome.others == ["digits", "digits-tfparallel", "digits-tfparallel"]


async def test_an_attempt_and_an_end_are_written_before_any_pod_is_deleted_for_them() -> None:
    api = memory_api.MemoryApi()
    await _play(api, scenarios.SCENARIOS[GANG])
    first = api.first_version
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
    scenario, api, time = scenarios.SCENARIOS[name], memory_api.MemoryApi(), clock.Clock()
    await api.create(resources.JOBS, "default", scenario.job)
    asked: list[int] = []

    def may_write() -> None:
        asked.append(len(api.log))

    async with small_engine.SmallEngine(api, api, time, may_write).running() as engine:
        await engine.settle()
        for step in scenario.steps:
            step(api)
            await engine.settle()
    written = [request for request in api.log[1:] if "/events/" not in request]
    recorded = len(api.log) - 1 - len(written)
    repeats = len(asked) - len(written) - recorded  # Events that exist are no writes.
    assert 0 <= repeats <= recorded
    assert [request.split()[0] for request in written].count("delete") > 0


async def test_an_operator_that_may_not_write_writes_nothing() -> None:
    api = memory_api.MemoryApi()
    await api.create(resources.JOBS, "default", objects.job())

    def refuse() -> None:
        raise lease.Lost("not held any more")

    time = clock.Clock()
    async with small_engine.SmallEngine(api, api, time, refuse).running() as engine:
        for _ in range(3):
            await engine.settle()
    assert len(api.log) == 1


async def test_an_operator_that_loses_the_lease_after_a_status_records_no_event() -> None:
    api = memory_api.MemoryApi()
    await api.create(resources.JOBS, "default", objects.job())

    def refuse_after_status() -> None:
        if api.log[-1].endswith("/status"):
            raise lease.Lost("not held any more")

    time = clock.Clock()
    async with small_engine.SmallEngine(api, api, time, refuse_after_status).running() as engine:
        await engine.settle()
    assert api.log[-1].endswith("/status")
    assert not any("/events/" in write for write in api.log)


async def test_the_status_of_a_new_job_follows_its_pods() -> None:
    api = memory_api.MemoryApi()
    await api.create(resources.JOBS, "default", objects.job())
    async with small_engine.SmallEngine(api, api, clock.Clock()).running() as engine:
        await engine.settle()
    writes = [write for write in api.log[1:] if "/events/" not in write]
    pods = [number for number, write in enumerate(writes) if "/pods/" in write]
    statuses = [number for number, write in enumerate(writes) if write.endswith("/status")]
    assert len(pods) == len(objects.job()["spec"]["tfReplicaSpecs"]) + 1
    assert statuses == [max(pods) + 1]


async def test_a_job_that_is_left_alone_is_not_written_to() -> None:
    api = memory_api.MemoryApi()
    await api.create(resources.JOBS, "default", objects.job())
    async with small_engine.SmallEngine(api, api, clock.Clock()).running() as engine:
        await engine.settle()
        scenarios.run(api)
        await engine.settle()
        before = len(api.log)
        for _ in range(5):
            await engine.sweeper.sweep()
            await engine.settle(seconds=700)
        assert api.log[before:] == []
