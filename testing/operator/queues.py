"""Jobs in a queue of Kueue, in memory; the test plays Kueue."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from testing.operator import builders
from tfparallel_operator.api import load, names
from tfparallel_operator.core import observation

ADMITTED = names.ConditionType.ADMITTED
QUEUES = dataclasses.replace(builders.SETTINGS, queues=True)
FLAVORS = {
    "spot": observation.Flavor(
        {"cloud.example/spot": "true"}, ({"key": "spot", "operator": "Exists"},)
    )
}


def queued_world(
    labels: Mapping[str, str] | None = None, *, trainer: bool = False, **job: Any
) -> builders.World:
    """Return a job in the queue `research`, as it waits."""
    run_policy, elastic = job.pop("run_policy", None), job.pop("elastic", False)
    document = builders.manifest(trainer=trainer, **(job or {"chief": 1, "worker": 2}))
    document["metadata"]["labels"] = {names.LABEL_QUEUE: "research", **(labels or {})}
    if elastic:
        document["spec"]["tfReplicaSpecs"]["Worker"].update(minReplicas=1, maxReplicas=3)
    if run_policy:
        document["spec"]["runPolicy"] = run_policy
    world = builders.World(load.parse_job(document), settings=QUEUES, flavors=FLAVORS)
    world.run_until_quiet()
    return world


def set_conditions(
    world: builders.World, *changed: tuple[str, str, str, str], **changes: Any
) -> None:
    """Have Kueue set conditions and fields of the Workload, and the operator answer."""
    write_conditions(world, *changed, **changes)
    world.run_until_quiet()


def write_conditions(
    world: builders.World, *changed: tuple[str, str, str, str], **changes: Any
) -> None:
    """Have Kueue set conditions and fields of the Workload."""
    workload = workload_of(world)
    conditions = {condition["type"]: condition for condition in workload.conditions}
    for kind, status, reason, message in changed:
        time = "2026-01-01T00:00:00Z"
        conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": time,
        }
    version = str(int(workload.version) + 1)
    world.workload = dataclasses.replace(
        workload, version=version, conditions=tuple(conditions.values()), **changes
    )


def admit(world: builders.World, **admission: Any) -> None:
    """Have Kueue admit the job, all roles on spot nodes, and the operator answer."""
    write_admission(world, **admission)
    world.run_until_quiet()


def write_admission(world: builders.World, **admission: Any) -> None:
    """Have Kueue admit the job, all roles on spot nodes."""
    podset_admission = observation.PodSetAdmission(**{"flavors": ("spot",), **admission})
    write_conditions(
        world,
        ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue gpus"),
        ("Admitted", "True", "Admitted", "The workload is admitted"),
        ("Evicted", "False", "QuotaReserved", "Previously: nothing"),
        cluster_queue="gpus",
        admission=dict.fromkeys(workload_of(world).counts, podset_admission),
    )


def evict(world: builders.World, reason: str = "Preempted", **changes: Any) -> None:
    """Have Kueue take the job's quota."""
    set_conditions(world, ("Evicted", "True", reason, "to make place for another"), **changes)


def workload_of(world: builders.World) -> observation.Workload:
    """Return the job's Workload."""
    assert world.workload is not None
    return world.workload


def conditions_of(world: builders.World) -> dict[str, tuple[str, str]]:
    """Return the Workload's conditions: status and reason."""
    conditions = workload_of(world).conditions
    return {
        condition["type"]: (condition["status"], condition["reason"]) for condition in conditions
    }


def message_of(world: builders.World) -> str:
    """Return what the job says of its admission."""
    return next(
        condition.message for condition in world.status.conditions if condition.type is ADMITTED
    )


def pod_manifests(world: builders.World) -> list[dict[str, Any]]:
    """Return the manifests of the pods that were created."""
    return [manifest for manifest in world.manifests if manifest["kind"] == "Pod"]
