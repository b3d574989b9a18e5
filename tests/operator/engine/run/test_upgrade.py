"""An upgrade under running jobs: the operator of an earlier commit ends, this one takes over."""

import asyncio
import contextlib
import pathlib
import signal
from collections.abc import AsyncIterator

from testing import waiting
from testing.cluster import handle
from testing.operator import earlier, namespaces, objects, operator_process
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, credentials, resources
from tfparallel_operator.engine import handlers
from tfparallel_operator.engine.run import engine

KEPT = ("state", "attempt", "restarts", "ready", "startTime", "attemptTime", "completionTime")
GANG = ("chief-0", "worker-0", "worker-1")
SERVERS = (*GANG, "ps-0")


def _servers() -> namespaces.Body:
    job = objects.job("servers")
    job["spec"]["tfReplicaSpecs"]["PS"] = {"template": objects.template()}
    return job


JOBS = {
    "steady": objects.job("steady"),
    "bereft": objects.job("bereft"),
    "gang": objects.job("gang"),
    "servers": _servers(),
    "suspended": objects.job("suspended", runPolicy={"suspend": True}),
    "succeeded": objects.job("succeeded", workers=1),
    "failed": objects.job("failed", workers=0, runPolicy={"backoffLimit": 0}),
}


async def test_jobs_live_on_under_the_next_operator(
    upgrade_cluster: handle.Cluster, tmp_path: pathlib.Path
) -> None:
    previous = earlier.unpack(tmp_path / "earlier")
    print("upgraded from", previous.commit)
    namespaces.install(upgrade_cluster, previous.definition())
    async with namespaces.open_in(upgrade_cluster) as namespace:
        await _live_under(previous, namespace, tmp_path)
        statuses = {name: await namespace.status(name) for name in JOBS}
        uids = await _uids(namespace)
        async with namespace.creations() as created:
            # Statuses of before 244bcaa do not say whose pods were seen, so nobody knows this loss.
            knows_losses = "seen" in statuses["bereft"]["replicas"]["Worker"]
            if knows_losses:
                await _lose(namespace, "bereft-worker-1", uids)
            namespaces.install(upgrade_cluster)
            async with _operator_that_has_seen_all(namespace):
                if knows_losses:
                    await _until_pods(namespace, "bereft", GANG, attempt=2)
                    bereft = await namespace.status("bereft")
                    assert bereft["restarts"] == {"failure": 0, "disruption": 1}
                    del statuses["bereft"]
                assert uids.items() <= (await _uids(namespace)).items()
                for name, before in statuses.items():
                    _assert_nothing_lost(name, before, await namespace.status(name))
                await _go_on(namespace, uids)
        expected = [("servers-worker-1", "1", "1")]
        expected += [(f"gang-{pod}", "3", "0") for pod in GANG]
        expected += [(f"suspended-{pod}", "1", "0") for pod in GANG]
        expected += [(f"bereft-{pod}", "2", "0") for pod in GANG if knows_losses]
        assert sorted(created) == sorted(expected)


async def _lose(namespace: Namespace, pod: str, uids: dict[str, str]) -> None:
    """Delete a pod as the loss of its node does, and leave out the pods that restart with it."""
    await namespace.api.delete(resources.PODS, namespace.name, pod, uids[pod], force=True)
    job = pod.partition("-")[0]
    for name in [name for name in uids if name.startswith(f"{job}-")]:
        del uids[name]


async def _live_under(
    previous: earlier.Operator, namespace: Namespace, folder: pathlib.Path
) -> None:
    """Let the earlier operator bring each job to its place in life."""
    variables = {
        **namespace.variables,
        **previous.variables,
    }
    async with operator_process.running(variables, folder / "earlier.log") as operator:
        await operator.until_ready()
        for job in JOBS.values():
            await namespace.create_job(job)
        for name in ("steady", "bereft", "gang"):
            await _until_pods(namespace, name, GANG)
        await _until_pods(namespace, "servers", SERVERS)
        await _until_pods(namespace, "succeeded", ("chief-0", "worker-0"))
        await _until_pods(namespace, "failed", ("chief-0",))
        await namespace.run_all()
        for name in ("steady", "bereft", "gang", "servers"):
            await namespace.until_state("Running", name)
        await namespace.end("gang-worker-0", 1)
        await _until_pods(namespace, "gang", GANG, attempt=2)
        await namespace.run_all()
        await namespace.until_state("Running", "gang")
        await namespace.end("succeeded-chief-0", 0)
        await namespace.until_state("Succeeded", "succeeded")
        await _until_pods(namespace, "succeeded", ("chief-0",))
        await namespace.end("failed-chief-0", 1)
        await namespace.until_state("Failed", "failed")
        await namespace.until_state("Suspended", "suspended")
        operator.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            assert await operator.process.wait() == 0, operator.log


@contextlib.asynccontextmanager
async def _operator_that_has_seen_all(namespace: Namespace) -> AsyncIterator[None]:
    """Run this operator; it has looked at each job, and has nothing more to do."""
    settings, stop = namespace.settings(), asyncio.Event()
    async with client.Client(credentials.find(settings.kubeconfig)) as api:
        upgraded = engine.Engine(settings, api)
        task = asyncio.create_task(handlers.run(upgraded, stop))

        async def count_looks() -> tuple[float, float]:
            assert not task.done(), task.exception()
            read = upgraded.metrics.registry.get_sample_value
            done = read("tfparallel_reconcile_duration_seconds_count", {"outcome": "done"})
            return done or 0, read("tfparallel_queue_depth") or 0

        try:
            await waiting.until_async(
                count_looks,
                "the operator has looked at every job (count_looks, and jobs that wait for one)",
                when=lambda counts: counts[0] >= len(JOBS) and counts[1] == 0,
            )
            yield
        finally:
            stop.set()
            await task
            await asyncio.sleep(namespaces.CLOSE_SECONDS)


def _assert_nothing_lost(name: str, before: namespaces.Body, after: namespaces.Body) -> None:
    """Nothing of a status is gone or goes back; there may be more of it."""
    conditions = {condition["type"]: condition for condition in after["conditions"]}
    for condition in before["conditions"]:
        now = conditions[condition["type"]]
        for field in ("status", "reason", "lastTransitionTime"):
            assert now[field] == condition[field], (name, field, condition, now)
    kept = {key: before.get(key) for key in KEPT}
    assert {key: after.get(key) for key in KEPT} == kept, name


async def _go_on(namespace: Namespace, uids: dict[str, str]) -> None:
    """Lose a worker of each kind of job, resume one, and let all succeed."""
    await namespace.end("steady-chief-0", 0)
    status = await namespace.until_state("Succeeded", "steady")
    assert (status["attempt"], status["restarts"]) == (1, {"failure": 0, "disruption": 0})

    await namespace.end("gang-worker-1", 1)
    await _until_pods(namespace, "gang", GANG, attempt=3)
    await namespace.run_all()
    await namespace.until_state("Running", "gang")
    await namespace.end("gang-chief-0", 0)
    status = await namespace.until_state("Succeeded", "gang")
    assert (status["attempt"], status["restarts"]) == (3, {"failure": 2, "disruption": 0})

    await namespace.end("servers-worker-1", 1)

    async def replaced() -> bool:
        return (await _uids(namespace)).get("servers-worker-1") not in {
            None,
            uids["servers-worker-1"],
        }

    await waiting.until_async(replaced, "the worker is replaced")
    now = await _uids(namespace)
    kept = {f"servers-{pod}" for pod in SERVERS} - {"servers-worker-1"}
    assert {name: now[name] for name in kept} == {name: uids[name] for name in kept}
    await namespace.run_all()
    await namespace.until_state("Running", "servers")
    await namespace.end("servers-chief-0", 0)
    assert (await namespace.until_state("Succeeded", "servers"))["attempt"] == 1

    namespace.change({"runPolicy": {"suspend": False}}, "suspended")
    await _until_pods(namespace, "suspended", GANG)
    await namespace.run_all()
    await namespace.until_state("Running", "suspended")
    await namespace.end("suspended-chief-0", 0)
    await namespace.until_state("Succeeded", "suspended")


async def _uids(namespace: Namespace) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in (await namespace.pods()).items()}


async def _until_pods(
    namespace: Namespace, job: str, pods: tuple[str, ...], attempt: int = 1
) -> None:
    """Wait until a job has exactly these pods of this attempt."""

    async def list_pods() -> dict[str, str]:
        return {
            name: pod["metadata"]["labels"][names.LABEL_ATTEMPT]
            for name, pod in (await namespace.pods()).items()
            if pod["metadata"]["labels"].get(names.LABEL_JOB) == job
        }

    expected = {f"{job}-{pod}": str(attempt) for pod in pods}
    await waiting.until_async(list_pods, f"the pods of {job}", when=expected.__eq__)
