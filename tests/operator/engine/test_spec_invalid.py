"""A job that runs when its spec becomes invalid, or was written by another version's rules."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from testing import waiting
from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import gate, names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import installation
from tfparallel_operator.core.pods import config
from tfparallel_operator.engine.observe import host_port_allocator, jobs, records
from tfparallel_operator.engine.workqueue import queue

JOB = resources.JOBS.path("default", "digits")
CONFIG = resources.CONFIG_MAPS.path("default", "digits-tfparallel")
RENAMED = {"tfReplicaSpecs": {"Chief": {"template": {"spec": {"containers": [{"name": "main"}]}}}}}
"""An edit that no schema can refuse: no container trains."""


@pytest.fixture
def world() -> MemoryCluster:
    return MemoryCluster()


def condition(world: MemoryCluster, kind: str) -> dict[str, Any]:
    return of_status(world.status, kind)


def of_status(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    conditions = status.get("conditions", ())
    return dict(next((condition for condition in conditions if condition["type"] == kind), {}))


def pods(world: MemoryCluster) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in world.api.items(resources.PODS)
    }


async def edit(world: MemoryCluster, **spec: Any) -> None:
    await world.api.patch(JOB, {"spec": spec})
    await world.let_go()


def valid() -> dict[str, Any]:
    spec: dict[str, Any] = objects.job()["spec"]
    return spec


async def replace_generation(world: MemoryCluster, role: str, template: Any) -> None:
    """Give the job another spec of its generation, as after a restore of etcd and an edit."""
    world.engine.rewinds += 1
    [job] = world.api.items(resources.JOBS)
    job["spec"]["tfReplicaSpecs"][role]["template"] = template
    world.api.touch(JOB)
    await world.let_go()


async def test_a_generation_that_comes_again_after_a_restore_is_checked_again(
    world: MemoryCluster,
) -> None:
    async with world.running(objects.job()):
        await edit(world, runPolicy={"backoffLimit": 1})
        renamed = RENAMED["tfReplicaSpecs"]["Chief"]["template"]
        await replace_generation(world, "Chief", renamed)
        assert condition(world, "SpecInvalid")["status"] == "True"


async def test_a_generation_that_comes_again_after_a_restore_may_be_restricted(
    world: MemoryCluster,
) -> None:
    forbidden = installation.HostAccess.FORBIDDEN
    world.settings["restrictions"] = installation.Restrictions(host_access=forbidden)
    async with world.running(objects.job()):
        await edit(world, runPolicy={"backoffLimit": 1})
        await replace_generation(world, "Worker", objects.template(hostPID=True))
        await world.start_pods()
        await world.end("digits-worker-0", 1)
        refused = condition(world, "CreationRefused")
        assert (refused["status"], refused["reason"]) == ("True", "JobRestricted")


async def test_a_running_job_goes_on_with_its_last_valid_spec(world: MemoryCluster) -> None:
    async with world.running(objects.job()):
        await world.start_pods()
        before = pods(world)
        await edit(world, **RENAMED)
        invalid = condition(world, "SpecInvalid")
        assert (invalid["status"], invalid["reason"]) == ("True", "InvalidSpec")
        assert invalid["observedGeneration"] == 2
        assert "spec.tfReplicaSpecs.Chief.template.spec.containers" in invalid["message"]
        assert "received ['main']" in invalid["message"]
        assert "generation 1" in invalid["message"]
        assert (world.status["state"], world.status["observedGeneration"]) == ("Running", 1)
        assert pods(world) == before
        assert ("Warning", "InvalidSpec") in world.events()
        await edit(world, **valid())
        assert condition(world, "SpecInvalid")["status"] == "False"
        assert (world.status["state"], world.status["attempt"]) == ("Running", 1)
        assert world.status["observedGeneration"] == 3
        assert pods(world) == before


@pytest.mark.parametrize("restarted", [False, True])
async def test_losses_and_the_end_are_answered_under_an_invalid_spec(
    world: MemoryCluster, restarted: bool
) -> None:
    policy = {"backoffLimit": 1, "ttlSecondsAfterFinished": 60}
    async with world.running(objects.job(runPolicy=policy)):
        await world.start_pods()
        await edit(world, **RENAMED)
        if not restarted:
            await _lose_and_succeed(world)
    if restarted:
        async with world.running():
            await _lose_and_succeed(world)


async def _lose_and_succeed(world: MemoryCluster) -> None:
    await world.end("digits-worker-1", 137)
    assert world.status["attempt"] == 2
    await world.start_pods()
    assert len(pods(world)) == 3
    await world.end("digits-chief-0", 0, seconds=5)
    assert world.status["state"] == "Succeeded"
    await world.engine.run_until_quiet(seconds=61)
    assert world.api.items(resources.JOBS) == ()


@pytest.mark.parametrize("seconds", [100])
async def test_a_deadline_holds_under_an_invalid_spec_after_a_restart_of_the_operator(
    world: MemoryCluster, seconds: int
) -> None:
    async with world.running(objects.job(runPolicy={"activeDeadlineSeconds": seconds})):
        await world.start_pods()
        await edit(world, **RENAMED)
    async with world.running():
        await world.engine.run_until_quiet(seconds=seconds)
        failed = condition(world, "Failed")
        assert failed["reason"] == names.Reason.DEADLINE_EXCEEDED
        await world.let_go()
        assert pods(world) == {}


async def test_a_suspended_job_stays_so_under_an_invalid_spec(world: MemoryCluster) -> None:
    async with world.running(objects.job()):
        await world.start_pods()
        await world.change(suspend=True)
        await edit(world, runPolicy={"suspend": False}, **RENAMED)
        assert world.status["state"] == "Suspended"
        assert pods(world) == {}
        await edit(world, **valid())
        assert (world.status["attempt"], len(pods(world))) == (2, 3)


async def test_a_gang_that_nobody_can_start_ends_no_suspended_job(
    world: MemoryCluster,
) -> None:
    async with world.running(objects.job(runPolicy={"ttlSecondsAfterFinished": 0})):
        await world.start_pods()
        await world.change(suspend=True)
        await world.change(schedulingPolicy={"minAvailable": 2})
        assert "schedulingPolicy" in condition(world, "SpecInvalid")["message"]
        assert world.status["state"] == "Suspended"
        await world.change(schedulingPolicy=None, suspend=False)
        assert (world.status["attempt"], len(pods(world))) == (2, 3)


async def test_a_stricter_release_ends_no_job_that_runs(
    world: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is of the same generation; even without one the job continues."""
    for lacks_record in (False, True):
        world = MemoryCluster()
        async with world.running(objects.job()):
            await world.start_pods()
            before = pods(world)
        if lacks_record:
            del world.api.object(CONFIG)["data"][config.SPEC_KEY]  # As an older release left it.
        [job] = world.api.items(resources.JOBS)
        job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"][0]["name"] = "x"
        job["spec"]["tfReplicaSpecs"]["Chief"]["newer"] = True  # As a newer release had it.
        async with world.running():
            assert condition(world, "SpecInvalid")["status"] == "True"
            assert (world.status["state"], pods(world)) == ("Running", before)
            await world.end("digits-worker-1", 137)
            assert world.status["attempt"] == 2


def _record(hostile: str) -> str:
    """Return a record of a spec that would be valid but for what its template has."""
    roles = f'{{"Worker":{{"replicas":1,"template":{{"x":{hostile}}}}}}}'
    return f'{{"generation":1,"spec":{{"trainer":null,"tfReplicaSpecs":{roles}}}}}'


@pytest.mark.parametrize(
    "record",
    [
        None,
        *("", "null", "[]", "{", '{"generation":1}', '{"generation":"x","spec":{}}'),
        f'{{"generation":1,"spec":{"[" * 300}{"]" * 300}}}',
        _record("[" * gate.MAX_DEPTH + "]" * gate.MAX_DEPTH),
        _record(f"[{'{},' * gate.MAX_VALUES}{{}}]"),
        _record(f'"{"x" * 2 * gate.MAX_SPEC_BYTES}"'),
    ],
    ids=range(11),
)
async def test_without_a_record_a_job_is_left_alone(
    world: MemoryCluster, record: str | None
) -> None:
    """People who may edit ConfigMaps may write anything there."""
    async with world.running(objects.job()):
        await world.start_pods()
        before = pods(world)
    del world.api.object(CONFIG)["data"][config.SPEC_KEY]
    if record is not None:
        world.api.object(CONFIG)["data"][config.SPEC_KEY] = record
    await world.api.patch(JOB, {"spec": RENAMED})
    async with world.running():
        invalid = condition(world, "SpecInvalid")
        assert "the operator does nothing until you do" in invalid["message"]
        assert (world.status["state"], pods(world)) == ("Running", before)
        writes = len(world.api.log)
        await world.engine.run_until_quiet(seconds=1000)
        assert len(world.api.log) == writes
        await edit(world, **valid())
        assert (world.status["state"], pods(world)) == ("Running", before)


async def test_the_record_does_not_undo_what_was_scaled(world: MemoryCluster) -> None:
    job = objects.job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 4
    async with world.running(job):
        await world.start_pods()
        scaled = {"Worker": {"replicas": 3}}
        await edit(world, tfReplicaSpecs=scaled)
        assert world.status["workers"] == 2, "training runs for a while before it is scaled"
        await edit(world, **RENAMED)
        await world.engine.run_until_quiet(seconds=100)
        await world.let_go()
        assert world.status["workers"] == 3
        await world.start_pods(seconds=100)
        assert (world.status["workers"], world.status["attempt"]) == (3, 2)


async def test_a_job_that_never_was_valid_leaves_no_workload(world: MemoryCluster) -> None:
    job = objects.job()
    job["metadata"]["labels"] = {names.LABEL_QUEUE: "local"}
    async with world.running(job):
        assert len(world.api.items(resources.WORKLOADS)) == 1
        await edit(world, **RENAMED)
        assert world.status["state"] == "Failed"
        assert world.api.items(resources.WORKLOADS) == ()
        assert not any(
            condition["status"] == "True"
            for condition in world.status["conditions"]
            if condition["type"] != "Failed"
        )


async def test_a_status_of_a_newer_operator_stays_whole(world: MemoryCluster) -> None:
    async with world.running(objects.job()):
        await world.start_pods()
        before = pods(world)
    [job] = world.api.items(resources.JOBS)
    newer = {
        "type": "Checkpointed",
        "status": "True",
        "reason": "Saved",
        "message": "step 7",
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    job["status"]["conditions"].append(newer)
    job["status"]["mood"] = {"of": "the day"}
    job["status"]["replicas"]["Worker"]["mood"] = "sunny"
    job["status"]["state"] = "Resting"
    async with world.running():
        assert world.status["state"] != "Failed"
        await world.end("digits-worker-1", 137)
        assert world.status["attempt"] == 2
        kept = {**newer, "observedGeneration": 0}
        assert condition(world, "Checkpointed") == kept
        assert world.status["mood"] == {"of": "the day"}
        assert world.status["replicas"]["Worker"]["mood"] == "sunny"
        assert set(pods(world)) == set(before)


async def test_a_job_of_a_newer_version_waits_for_the_newer_operator(
    world: MemoryCluster,
) -> None:
    job = objects.job()
    job["spec"]["newer"] = True
    async with world.running(job):
        assert "state" not in world.status or world.status["state"] == "Pending"
        assert "newer" in condition(world, "SpecInvalid")["message"]
        assert pods(world) == {}
    [body] = world.api.items(resources.JOBS)
    del body["spec"]["newer"]  # As an operator reads it that knows the field.
    async with world.running():
        assert condition(world, "SpecInvalid")["status"] == "False"
        assert (world.status["attempt"], len(pods(world))) == (1, 3)


async def test_a_status_that_cannot_be_read_is_never_written_over(
    world: MemoryCluster,
) -> None:
    async with world.running(objects.job()):
        await world.start_pods()
    [job] = world.api.items(resources.JOBS)
    job["status"]["attempt"] = "the second"
    for spec in (valid(), RENAMED):
        await world.api.patch(JOB, {"spec": spec})
        async with world.running():
            assert world.status["attempt"] == "the second"
            assert len(pods(world)) == 3


async def test_the_config_map_follows_the_spec(world: MemoryCluster) -> None:
    roles = {"Worker": {"replicas": 60, "maxReplicas": 70, "template": objects.template()}}
    job = objects.job(trainer={"epochs": 1})
    job["spec"]["tfReplicaSpecs"] = roles
    async with world.running(job):
        await world.start_pods()
        await edit(world, tfReplicaSpecs={"Worker": {"maxReplicas": 200}})
        data = world.api.object(CONFIG)["data"]
        cluster = json.loads(data[config.CLUSTER_KEY])
        assert len(cluster["worker"]) == 200
        record = json.loads(data[config.SPEC_KEY])
        assert record["generation"] == 2
        assert record["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] == 200
        writes = len(world.api.log)
        await world.engine.run_until_quiet(seconds=1)
        assert len(world.api.log) == writes


async def test_a_newer_authority_reaches_jobs_that_run(world: MemoryCluster) -> None:
    async with world.running(objects.job()):
        await world.start_pods()
        assert config.CA_FILE_KEY not in world.api.object(CONFIG)["data"]
    world.settings = {"progress_ca": "NEWER"}
    async with world.running():
        assert world.api.object(CONFIG)["data"][config.CA_FILE_KEY] == "NEWER"


def _job(uid: str, first: int, count: int) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": uid, "uid": uid, "resourceVersion": "1"}
    return {"metadata": metadata, "status": {"hostPorts": {"first": first, "count": count}}}


def _owner(name: str) -> records.Owner:
    return records.Owner("ns", name, name)


def test_more_ports_follow_those_that_a_job_has_where_they_are_free() -> None:
    store = jobs.Jobs(queue.Queue())
    for body in (_job("a", 10_000, 2), _job("b", 10_005, 2)):
        store.apply_event("ADDED", body)
    ports = host_port_allocator.HostPortAllocator(store)
    assert ports.find(_owner("a"), 5) == 10_000
    assert ports.find(_owner("a"), 6) is None
    assert ports.find(_owner("b"), 3) == 10_005
    store.apply_event("ADDED", {"metadata": {**_job("c", 0, 0)["metadata"]}, "status": {}})
    assert ports.find(_owner("c"), 1) == 10_008, "what is promised is not given to others"


async def test_ports_are_set_aside_for_workers_when_they_come(world: MemoryCluster) -> None:
    job = objects.job(network="Open", hostNetwork=True)
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 5_000
    async with world.running(job):
        await world.start_pods()
        assert world.status["hostPorts"] == {"first": 10_000, "count": 3}
        await edit(world, tfReplicaSpecs={"Worker": {"replicas": 4}})
        assert world.status["hostPorts"] == {"first": 10_000, "count": 5}
        other = objects.job("letters", network="Open", hostNetwork=True)
        await world.api.create(resources.JOBS, "default", other)
        await world.engine.run_until_quiet(seconds=0)
        await edit(world, tfReplicaSpecs={"Worker": {"replicas": 5}})
        path = resources.JOBS.path("default", "digits")
        status = world.api.object(path)["status"]
        assert status["hostPorts"] == {"first": 10_000, "count": 5}
        [invalid] = [
            condition for condition in status["conditions"] if condition["type"] == "SpecInvalid"
        ]
        assert "Worker.replicas" in invalid["message"]
        assert status["state"] == "Running"


async def test_more_workers_than_a_pod_can_know_end_no_job(world: MemoryCluster) -> None:
    job = objects.job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 5000
    async with world.running(job):
        await world.start_pods()
        await edit(world, tfReplicaSpecs={"Worker": {"replicas": 5000}})
        await world.engine.run_until_quiet(seconds=100)
        await world.let_go()
        assert "TF_CONFIG" in condition(world, "SpecInvalid")["message"]
        assert (world.status["state"], world.status["workers"]) == ("Running", 2)
        assert len(pods(world)) == 3


async def test_kubectl_scale_to_a_number_that_fits_no_mesh_orphans_nothing(
    namespace: Namespace,
) -> None:
    resource_limits = {"limits": {names.GPU_RESOURCE: "2"}}
    template = objects.template()
    template["spec"]["containers"][0]["resources"] = resource_limits
    worker = {"replicas": 2, "maxReplicas": 4, "template": template}
    job = objects.job(strategy="ModelSplit", mesh={"data": -1, "tensor": 4}, trainer={"epochs": 1})
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    job["spec"]["runPolicy"] = {"scaleCooldownSeconds": 0}
    both = ("digits-worker-0", "digits-worker-1")
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.run_pods(*both)
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=3")

        async def invalid() -> bool:
            return of_status(await namespace.status(), "SpecInvalid").get("status") == "True"

        await waiting.until_async(invalid, "the scaled spec is invalid")
        assert (await namespace.status())["state"] == "Running"
    async with namespace.operator():
        await namespace.end("digits-worker-1", 137)
        await namespace.run_pods(*both, attempt=2)
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=2")

        async def corrected() -> bool:
            return of_status(await namespace.status(), "SpecInvalid").get("status") == "False"

        await waiting.until_async(corrected, "the spec is valid again")
        await namespace.until_pods(*both, attempt=2)
