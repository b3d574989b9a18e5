"""Jobs in a queue of Kueue: what is made of them, when they run, what becomes of their quota."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import observation, workload

ADMITTED = names.Condition.ADMITTED
QUEUES = dataclasses.replace(builders.SETTINGS, queues=True)
FLAVORS = {
    "spot": observation.Flavor(
        {"cloud.example/spot": "true"}, ({"key": "spot", "operator": "Exists"},)
    )
}


def queued(
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
    world.settle()
    return world


def kueue(world: builders.World, *told: tuple[str, str, str, str], **changes: Any) -> None:
    """Have Kueue set conditions and fields of the Workload."""
    found = the_workload(world)
    conditions = {one["type"]: one for one in found.conditions}
    for kind, status, reason, message in told:
        time = "2026-01-01T00:00:00Z"
        conditions[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": time,
        }
    version = str(int(found.version) + 1)
    world.workload = dataclasses.replace(
        found, version=version, conditions=tuple(conditions.values()), **changes
    )
    world.settle()


def admit(world: builders.World, **admission: Any) -> None:
    """Have Kueue admit the job, all roles on spot nodes."""
    given = observation.PodSetAdmission(**{"flavors": ("spot",), **admission})
    kueue(
        world,
        ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue gpus"),
        ("Admitted", "True", "Admitted", "The workload is admitted"),
        ("Evicted", "False", "QuotaReserved", "Previously: nothing"),
        cluster_queue="gpus",
        admission=dict.fromkeys(the_workload(world).counts, given),
    )


def evict(world: builders.World, reason: str = "Preempted", **changes: Any) -> None:
    """Have Kueue take the job's quota."""
    kueue(world, ("Evicted", "True", reason, "to make place for another"), **changes)


def the_workload(world: builders.World) -> observation.Workload:
    """Return the job's Workload."""
    assert world.workload is not None
    return world.workload


def told(world: builders.World) -> dict[str, tuple[str, str]]:
    """Return the Workload's conditions: status and reason."""
    return {one["type"]: (one["status"], one["reason"]) for one in the_workload(world).conditions}


def sentence(world: builders.World) -> str:
    """Return what the job says of its admission."""
    return next(one.message for one in world.status.conditions if one.type is ADMITTED)


def pods(world: builders.World) -> list[dict[str, Any]]:
    """Return the manifests of the pods that were created."""
    return [made for made in world.manifests if made["kind"] == "Pod"]


def test_a_job_in_a_queue_has_a_workload_and_no_pod_before_it_is_admitted() -> None:
    world = queued(chief=1, worker=3, ps=2)
    [made] = world.manifests
    assert (made["apiVersion"], made["kind"]) == ("kueue.x-k8s.io/v1beta1", "Workload")
    assert made["metadata"]["name"] == "tfparalleljob-job"
    assert made["metadata"]["labels"][names.LABEL_JOB_UID] == "job-uid"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert made["spec"]["queueName"] == "research"
    counts = {one["name"]: one["count"] for one in made["spec"]["podSets"]}
    assert counts == {"chief": 1, "worker": 3, "ps": 2}
    assert not world.pods
    assert builders.truth(world, ADMITTED) == ("False", "JobQueued")
    assert builders.state_of(world) is names.State.PENDING
    assert world.status.start_time is None


def test_its_templates_say_what_decides_about_quota_and_nothing_of_an_attempt() -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    worker = document["spec"]["tfReplicaSpecs"]["Worker"]
    worker["devices"] = 4
    worker["template"] = {
        "metadata": {"labels": {"team": "vision"}},
        "spec": {"nodeSelector": {"zone": "a"}, "priorityClassName": "high"},
    }
    world = builders.World(load.parse_job(document), settings=QUEUES)
    world.settle()
    [pod_set] = world.manifests[0]["spec"]["podSets"]
    spec = pod_set["template"]["spec"]
    assert spec["nodeSelector"] == {"zone": "a"}
    [container] = spec["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert set(container) == {"name", "image", "resources"}
    assert pod_set["template"]["metadata"]["labels"]["team"] == "vision"
    assert names.LABEL_ATTEMPT not in pod_set["template"]["metadata"]["labels"]
    assert world.manifests[0]["spec"]["priorityClassName"] == "high"
    source = world.manifests[0]["spec"]["priorityClassSource"]
    assert source == "scheduling.k8s.io/priorityclass"


def test_kueues_own_priority_class_wins_over_that_of_pods() -> None:
    world = queued({names.LABEL_WORKLOAD_PRIORITY: "urgent"})
    spec = world.manifests[0]["spec"]
    assert spec["priorityClassName"] == "urgent"
    assert spec["priorityClassSource"] == "kueue.x-k8s.io/workloadpriorityclass"


def test_why_it_waits_is_said_in_kueues_words() -> None:
    world = queued()
    assert sentence(world) == "queue research: Kueue has not looked at it yet"
    kueue(world, ("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu"))
    assert sentence(world) == "queue research: Pending: insufficient unused quota for cpu"
    told_before = len(world.events)
    kueue(
        world,
        ("QuotaReserved", "True", "QuotaReserved", ""),
        pending_checks=("provisioning: 2 of 3 nodes",),
    )
    assert sentence(world) == "queue research: provisioning: 2 of 3 nodes"
    assert len(world.events) == told_before == 1
    assert not world.pods


def test_once_admitted_its_pods_run_where_the_quota_is() -> None:
    world = queued()
    admit(world)
    assert builders.truth(world, ADMITTED) == ("True", "JobAdmitted")
    assert sentence(world) == "admitted by ClusterQueue gpus"
    assert world.status.attempt == 1
    assert world.status.start_time == world.now
    assert len(world.pods) == 3
    for pod in pods(world):
        assert pod["spec"]["nodeSelector"] == {"cloud.example/spot": "true"}
        assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
        assert "schedulingGates" not in pod["spec"]
        role = pod["metadata"]["labels"][names.LABEL_ROLE]
        assert pod["metadata"]["labels"][names.LABEL_POD_SET] == role
        assert pod["metadata"]["annotations"][names.ANNOTATION_WORKLOAD] == "tfparalleljob-job"


def test_what_admission_checks_add_comes_to_the_pods() -> None:
    world = queued()
    update = {
        "name": "worker",
        "labels": {"l": "1"},
        "annotations": {"a": "2"},
        "nodeSelector": {"pool": "p"},
        "tolerations": [{"key": "pool"}, {"key": "spot", "operator": "Exists"}],
    }
    admit(world, updates=(update,))
    for pod in pods(world):
        assert pod["metadata"]["labels"]["l"] == "1"
        assert pod["metadata"]["annotations"]["a"] == "2"
        assert pod["spec"]["nodeSelector"] == {"cloud.example/spot": "true", "pool": "p"}
        assert pod["spec"]["tolerations"] == [
            {"key": "spot", "operator": "Exists"},
            {"key": "pool"},
        ]


def test_admitted_without_a_flavor_its_pods_run_anywhere() -> None:
    world = queued()
    admit(world, flavors=())
    assert len(world.pods) == 3
    for pod in pods(world):
        assert not {"nodeSelector", "tolerations"} & pod["spec"].keys()


def test_a_workload_that_waits_gives_back_what_nobody_has_taken() -> None:
    change = workload.given_back(the_workload(queued()), builders.START)
    told = {one["type"]: one["reason"] for one in change.fields["status"]["conditions"]}
    assert told["QuotaReserved"] == "Pending"
    assert "Requeued" not in told


def test_pods_that_kueue_places_itself_wait_for_their_place() -> None:
    world = queued()
    admit(world, placed=True)
    assert all(
        pod["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
        for pod in pods(world)
    )


def test_preempted_it_ends_its_pods_then_gives_the_quota_back_and_waits() -> None:
    world = queued()
    admit(world)
    world.run()
    world.settle()
    the_message = "to make place for another"
    found = the_workload(world)
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": the_message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    others = tuple(one for one in found.conditions if one["type"] != "Evicted")
    world.workload = dataclasses.replace(found, conditions=(*others, evicted))
    world.step()
    assert all(pod.deleting for pod in world.pods.values())
    assert builders.truth(world, ADMITTED) == ("False", "JobEvicted")
    world.step()
    assert told(world)["QuotaReserved"][0] == "True", "pods still use it"
    world.settle()
    assert not world.pods
    assert told(world)["QuotaReserved"] == ("False", "Pending")
    assert told(world)["Admitted"] == ("False", "NoReservation")
    assert told(world)["Requeued"] == ("True", "Preempted")
    assert told(world)["PodsReady"] == ("False", "WaitForStart")
    assert the_workload(world).admission == {}
    assert builders.state_of(world) is names.State.PENDING
    assert builders.truth(world, names.Condition.RUNNING) == ("False", "JobEvicted")
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)
    assert world.status.attempt == 1


def test_admitted_again_it_begins_a_new_attempt() -> None:
    world = queued(run_policy={"activeDeadlineSeconds": 100, "backoffLimit": 0})
    admit(world)
    world.run()
    evict(world)
    world.advance(1000)
    world.settle()
    assert builders.truth(world, names.Condition.FAILED) is None, "waiting is not running"
    admit(world)
    assert world.status.attempt == 2
    assert world.status.start_time == world.now
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert world.events[-1].reason == "JobAdmitted"
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)


@pytest.mark.parametrize("reason", ["PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped"])
def test_after_other_evictions_kueue_says_when_it_queues_again(reason: str) -> None:
    world = queued()
    admit(world)
    evict(world, reason)
    assert told(world)["Requeued"] == ("False", reason)


def test_a_workload_that_somebody_stops_has_no_pods_and_goes_on_when_it_is_let() -> None:
    world = queued()
    admit(world)
    kueue(world, active=False)
    assert not world.pods
    assert told(world)["QuotaReserved"][0] == "True", "Kueue has not said yet that it is evicted"
    assert "spec.active is false" in sentence(world)
    evict(world, "Deactivated")
    assert told(world)["QuotaReserved"][0] == "False"
    kueue(world, active=True)
    assert the_workload(world).uid == "workload-1", "its place in the queue is kept"
    admit(world)
    assert world.status.attempt == 2


def test_restarts_keep_the_admission() -> None:
    world = queued()
    admit(world)
    world.run()
    world.settle()
    world.exit("job-worker-0", 1)
    world.settle()
    assert world.status.attempt == 2
    assert len(world.pods) == 3
    assert told(world)["QuotaReserved"][0] == "True"
    assert len([made for made in world.manifests if made["kind"] == "Workload"]) == 1
    assert pods(world)[-1]["spec"]["nodeSelector"] == {"cloud.example/spot": "true"}


def test_kueue_is_told_of_starts_losses_and_recoveries() -> None:
    world = queued()
    admit(world)
    assert told(world)["PodsReady"] == ("False", "WaitForStart")
    world.run()
    world.settle()
    assert told(world)["PodsReady"] == ("True", "Started")
    world.exit("job-worker-0", 1)
    world.settle()
    assert told(world)["PodsReady"] == ("False", "WaitForRecovery")
    world.run()
    world.settle()
    assert told(world)["PodsReady"] == ("True", "Recovered")


@pytest.mark.parametrize(("code", "reason"), [(0, "Succeeded"), (1, "Failed")])
def test_at_the_end_the_quota_is_free_when_the_last_pod_has_ended(code: int, reason: str) -> None:
    world = queued(run_policy={"backoffLimit": 0, "cleanPodPolicy": "None"}, chief=1, worker=1)
    admit(world)
    world.run()
    world.settle()
    world.exit("job-chief-0", code)
    world.advance(60)
    world.settle()
    assert builders.state_of(world) == reason
    assert "Finished" not in told(world), "a worker still has its devices"
    world.exit("job-worker-0", 0)
    world.settle()
    assert told(world)["Finished"] == ("True", reason)
    assert builders.truth(world, ADMITTED) == ("False", "JobFinished")
    writes = world.writes
    world.settle()
    assert world.writes == writes


def test_success_that_comes_with_an_eviction_is_success() -> None:
    world = queued()
    admit(world)
    world.run()
    world.settle()
    world.exit("job-chief-0", 0)
    evict(world)
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert told(world)["Finished"] == ("True", "Succeeded")


def test_suspended_by_its_user_it_leaves_the_queue_and_resumed_it_queues_anew() -> None:
    world = queued()
    admit(world)
    world.run()
    world.settle()
    world.edit(suspend=True)
    world.step()
    assert world.workload is not None, "its pods still use the quota"
    world.settle()
    assert not world.pods
    assert world.workload is None
    assert builders.truth(world, ADMITTED) == ("False", "JobSuspended")
    assert world.status.restarts.disruption == 0
    world.edit(suspend=False)
    world.settle()
    assert builders.truth(world, names.Condition.SUSPENDED) == ("False", "JobResumed")
    assert builders.truth(world, ADMITTED) == ("False", "JobQueued")
    admit(world)
    assert world.status.attempt == 2


def test_a_job_that_is_suspended_from_the_start_is_in_no_queue() -> None:
    world = queued(run_policy={"suspend": True})
    assert world.workload is None
    assert not world.manifests


def test_a_workload_that_somebody_deletes_takes_the_pods_with_it() -> None:
    world = queued()
    admit(world)
    world.run()
    world.settle()
    world.workload = None
    world.settle()
    assert not world.pods
    assert builders.truth(world, ADMITTED) == ("False", "JobQueued")
    assert the_workload(world).conditions == ()
    assert world.status.restarts.disruption == 1


def scaled(world: builders.World, workers: int) -> None:
    """Have a person scale the workers."""
    specs = dict(world.job.spec.tf_replica_specs)
    specs[types.Role.WORKER] = specs[types.Role.WORKER].model_copy(update={"replicas": workers})
    spec = world.job.spec.model_copy(update={"tf_replica_specs": specs})
    world.job = world.job.model_copy(update={"spec": spec})
    world.advance(120)
    world.settle()


def test_scaled_it_queues_again_with_its_new_size_and_no_disruption() -> None:
    world = queued(elastic=True, chief=1, worker=2)
    admit(world)
    world.run()
    world.settle()
    scaled(world, 3)
    assert not world.pods
    assert the_workload(world).counts == {"chief": 1, "worker": 3}
    assert builders.truth(world, ADMITTED) == ("False", "JobQueued")
    assert world.status.restarts.disruption == 0
    admit(world)
    assert len(world.pods) == 4


def test_scaled_while_it_waits_it_asks_for_its_new_size() -> None:
    world = queued(elastic=True, chief=1, worker=2)
    scaled(world, 3)
    assert the_workload(world).counts == {"chief": 1, "worker": 3}
    admit(world)
    evict(world)
    scaled(world, 1)
    assert the_workload(world).counts == {"chief": 1, "worker": 1}
    admit(world)
    assert len(world.pods) == 2


def relabelled(world: builders.World, **labels: str) -> None:
    """Have a person change the job's labels."""
    metadata = world.job.metadata.model_copy(update={"labels": labels})
    world.job = world.job.model_copy(update={"metadata": metadata})
    world.settle()


def test_another_queue_or_priority_counts_while_it_waits_and_not_while_it_has_quota() -> None:
    world = queued()
    relabelled(world, **{names.LABEL_QUEUE: "other", names.LABEL_WORKLOAD_PRIORITY: "urgent"})
    found = the_workload(world)
    assert (found.queue, found.priority_class) == ("other", "urgent")
    admit(world)
    relabelled(world, **{names.LABEL_QUEUE: "third"})
    assert the_workload(world).queue == "other"
    relabelled(world)
    assert len(world.pods) == 3, "whoever has quota stays in the queue without the label"
    assert the_workload(world).queue == "other"
    evict(world)
    assert world.workload is None
    assert builders.truth(world, ADMITTED) is None
    assert len(world.pods) == 3, "without the label it waits for nobody"


def test_a_label_that_comes_late_stops_the_job_until_it_is_admitted() -> None:
    world = builders.World(builders.a_job(worker=2), settings=QUEUES, flavors=FLAVORS)
    world.settle()
    world.run()
    assert len(world.pods) == 2
    relabelled(world, **{names.LABEL_QUEUE: "research"})
    assert not world.pods
    assert world.status.restarts.disruption == 0
    admit(world)
    assert world.status.attempt == 2


def test_on_one_machine_nobody_queues() -> None:
    world = queued()
    world = builders.World(world.job.model_copy(update={"status": builders.a_job(worker=1).status}))
    world.settle()
    assert len(world.pods) == 3
    assert world.workload is None


def test_without_kueue_the_job_waits_and_says_so_until_it_is_there() -> None:
    document = builders.manifest(worker=1)
    document["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    world = builders.World(load.parse_job(document), settings=QUEUES, flavors=FLAVORS)
    refusal = observation.Refusal(names.Reason.KUEUE_NOT_INSTALLED, "install it", final=False)
    world.step(refusal=refusal)
    refused = names.Condition.CREATION_REFUSED
    assert builders.truth(world, refused) == ("True", "KueueNotInstalled")
    world.settle()
    assert builders.truth(world, refused) == ("False", "ReplicasCreated")
    admit(world)
    assert len(world.pods) == 1
