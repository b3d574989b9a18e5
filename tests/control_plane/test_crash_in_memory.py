"""Killing the operator after any of its writes changes nothing in the end."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.control_plane import crashing, memory_api, objects, small_engine
from tfparallel_operator.api import names
from tfparallel_operator.engine import client, resources

Step = Callable[[memory_api.MemoryApi], None]


def _run(api: memory_api.MemoryApi) -> None:
    """The kubelet starts every pod that waits."""
    for pod in api.items(resources.PODS):
        if pod["status"]["phase"] == "Pending":
            _write(api, pod, phase="Running", **objects.container(running={}))


def _end(name: str, code: int, attempt: str = "") -> Step:
    """A pod's container ends with a code, if it runs."""

    def step(api: memory_api.MemoryApi) -> None:
        for pod in api.items(resources.PODS):
            labels = pod["metadata"]["labels"]
            right = not attempt or labels[names.LABEL_ATTEMPT] == attempt
            if pod["metadata"]["name"] == name and right and pod["status"]["phase"] == "Running":
                ended = objects.container(terminated={"exitCode": code, "reason": "Error"})
                _write(api, pod, phase="Failed" if code else "Succeeded", **ended)

    return step


def _vanish(name: str) -> Step:
    """Somebody deletes a pod by force."""

    def step(api: memory_api.MemoryApi) -> None:
        api.remove(resources.PODS.path("default", name))

    return step


def _let_go(api: memory_api.MemoryApi) -> None:
    """The kubelet has ended the pods that are being deleted."""
    api.let_go()


def _write(api: memory_api.MemoryApi, pod: client.Object, **status: Any) -> None:
    pod["status"] = status
    path = resources.PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"])
    api.touch(path)


def _edit(change: dict[str, Any]) -> Step:
    """A person changes the spec."""

    def step(api: memory_api.MemoryApi) -> None:
        [job] = api.items(resources.JOBS)
        memory_api.merge(job["spec"], change)
        job["metadata"]["generation"] += 1
        api.touch(resources.JOBS.path("default", "digits"))

    return step


def _elastic() -> dict[str, Any]:
    given = objects.job(workers=1, runPolicy={"scaleCooldownSeconds": 5})
    given["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 3
    return given


SCENARIOS: dict[str, tuple[dict[str, Any], tuple[Step, ...]]] = {
    "a gang that fails once, loses a pod once and then succeeds": (
        objects.job(),
        (
            _run,
            _end("digits-worker-0", 1),
            _let_go,
            _run,
            _vanish("digits-worker-1"),
            _let_go,
            _run,
            _end("digits-chief-0", 0),
            _let_go,
        ),
    ),
    "a job that fails for good and is cleaned up": (
        objects.job(runPolicy={"backoffLimit": 0, "cleanPodPolicy": "All"}),
        (_run, _end("digits-worker-1", 3), _let_go),
    ),
    "a job that is suspended, resumed and scaled": (
        _elastic(),
        (
            _run,
            _edit({"runPolicy": {"suspend": True}}),
            _let_go,
            _edit({"runPolicy": {"suspend": False}}),
            _run,
            _edit({"tfReplicaSpecs": {"Worker": {"replicas": 2}}}),
            _let_go,
            _run,
            _end("digits-chief-0", 0),
            _let_go,
        ),
    ),
    "a gang of which one replica is run again by a rule": (
        objects.job(
            runPolicy={"failurePolicy": {"rules": [{"exitCodes": [3], "action": "RestartReplica"}]}}
        ),
        (_run, _end("digits-worker-1", 3), _let_go, _run, _end("digits-chief-0", 0), _let_go),
    ),
    "a job whose pods start together, and that is suspended": (
        objects.job(scheduling={"gang": "Coscheduling"}),
        (
            _run,
            _end("digits-worker-0", 1),
            _let_go,
            _edit({"runPolicy": {"suspend": True}}),
            _let_go,
            _edit({"runPolicy": {"suspend": False}}),
            _run,
            _end("digits-chief-0", 0),
            _let_go,
        ),
    ),
    "a job that is removed after its time to live": (
        objects.job(workers=0, runPolicy={"ttlSecondsAfterFinished": 5}),
        (_run, _end("digits-chief-0", 0)),
    ),
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is left at the end, without what no two runs share."""

    status: Any
    pods: list[str]
    created: list[tuple[str, str, str]]
    others: list[str]


async def _play(
    api: memory_api.MemoryApi, given: dict[str, Any], steps: tuple[Step, ...], crash: int | None
) -> Outcome:
    await api.create(resources.JOBS, "default", given)
    before = len(api.log)
    waiting, clock = list(steps), small_engine.Clock()
    try:
        await _live(crashing.CrashingApi(api, crash), api, clock, waiting)
    except* crashing.Killed:
        assert len(api.log) - before >= (crash or 0)
        await _live(api, api, clock, waiting)
    jobs = api.items(resources.JOBS)
    children = [*api.items(resources.SERVICES), *api.items(resources.CONFIG_MAPS)]
    return Outcome(
        status=_timeless(jobs[0]["status"]) if jobs else None,
        pods=[
            f"{pod['metadata']['name']} {pod['status']['phase']}"
            for pod in api.items(resources.PODS)
        ],
        created=sorted(api.created),
        others=[child["metadata"]["name"] for child in children],
    )


async def _live(
    api: client.Client,
    store: memory_api.MemoryApi,
    clock: small_engine.Clock,
    waiting: list[Step],
) -> None:
    """Run the engine through the steps that are left; one that was begun is not done again."""
    async with small_engine.SmallEngine(api, store, clock).running() as engine:
        await engine.settle()
        while waiting:
            waiting.pop(0)(store)
            await engine.settle()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if not k.lower().endswith("time")}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_kill_after_any_write_leads_to_the_same_end(name: str) -> None:
    given, steps = SCENARIOS[name]
    undisturbed = memory_api.MemoryApi()
    expected = await _play(undisturbed, given, steps, None)
    assert len(set(expected.created)) == len(expected.created)
    writes = len(undisturbed.log)
    assert writes > 5
    for crash in range(1, writes + 1):
        outcome = await _play(memory_api.MemoryApi(), given, steps, crash)
        assert outcome == expected, f"killed after write {crash} of {writes}"


async def test_the_undisturbed_run_of_a_gang_is_what_it_should_be() -> None:
    given, steps = SCENARIOS["a gang that fails once, loses a pod once and then succeeds"]
    api = memory_api.MemoryApi()
    outcome = await _play(api, given, steps, None)
    assert outcome.status["state"] == "Succeeded"
    assert outcome.status["attempt"] == 3
    assert outcome.status["restarts"] == {"failure": 1, "disruption": 1}
    assert outcome.pods == ["digits-chief-0 Succeeded"]
    assert len(outcome.created) == 9
    assert outcome.others == ["digits", "digits-tfparallel"]


async def test_an_attempt_and_an_end_are_written_before_any_pod_is_deleted_for_them() -> None:
    given, steps = SCENARIOS["a gang that fails once, loses a pod once and then succeeds"]
    api = memory_api.MemoryApi()
    await _play(api, given, steps, None)
    first = api.first_version
    second_attempt = first(resources.JOBS, lambda job: job["status"].get("attempt") == 2)
    ended = first(resources.JOBS, lambda job: job["status"].get("state") == "Succeeded")
    deleted = first(resources.PODS, lambda pod: "deletionTimestamp" in pod["metadata"])

    def cleaned(pod: client.Object) -> bool:
        last = pod["metadata"]["labels"][names.LABEL_ATTEMPT] == "3"
        return last and "deletionTimestamp" in pod["metadata"]

    assert 0 < second_attempt < deleted
    assert deleted < ended < first(resources.PODS, cleaned)


async def test_a_job_that_is_left_alone_is_not_written_to() -> None:
    api = memory_api.MemoryApi()
    await api.create(resources.JOBS, "default", objects.job())
    async with small_engine.SmallEngine(api, api, small_engine.Clock()).running() as engine:
        await engine.settle()
        _run(api)
        await engine.settle()
        before = len(api.log)
        for _ in range(5):
            await engine.sweeper.sweep()
            await engine.settle(seconds=700)
        assert api.log[before:] == []
