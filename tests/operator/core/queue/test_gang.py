"""Which PodGroup a job has in each part of its life, and how its pods name it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import installation, observation, replicas
from tfparallel_operator.core.queue import gang

COSCHEDULING = types.GangScheduler.COSCHEDULING
VOLCANO = types.GangScheduler.VOLCANO
KUBERNETES = types.GangScheduler.KUBERNETES
WORKER = replicas.Replica(types.Role.WORKER, 0)


def with_gangs(scheduler: types.GangScheduler | None = None) -> installation.Settings:
    """Return the settings of an installation where somebody schedules."""
    return dataclasses.replace(builders.SETTINGS, gangs=installation.Gangs(scheduler))


def a_gang(
    scheduler: types.GangScheduler = COSCHEDULING,
    policy: dict[str, Any] | None = None,
    **roles: Any,
) -> builders.World:
    """Return a job of a gang, with all that it needs."""
    spec = {"scheduling": {"gang": scheduler.value}}
    run_policy = None if policy is None else {"schedulingPolicy": policy}
    job = builders.a_job(spec=spec, run_policy=run_policy, **roles)
    world = builders.World(job, settings=with_gangs())
    world.settle()
    return world


def only_group(world: builders.World) -> observation.Group:
    """Return the one group that there is."""
    [group] = world.groups.values()
    return group


def a_pod(world: builders.World) -> Mapping[str, Any]:
    """Return the manifest of worker 0."""
    pod = builders.a_pod(world.job, WORKER, world.settings)
    gang.join(pod, world.job, world.settings.gangs)
    return pod


def test_without_a_request_no_gang_is_created() -> None:
    world = builders.World(builders.a_job(worker=2), settings=with_gangs(COSCHEDULING))
    world.settle()
    assert len(world.pods) == 2
    assert not world.groups
    assert "schedulerName" not in a_pod(world)["spec"]


def test_all_pods_are_of_one_group_the_evaluator_and_servers_too() -> None:
    world = a_gang(chief=1, worker=3, ps=2, evaluator=1)
    assert only_group(world) == observation.Group(
        "scheduling.x-k8s.io/v1alpha1", "job", "group-uid", {"minMember": 7}
    )
    pod = a_pod(world)
    assert pod["metadata"]["labels"][names.LABEL_POD_GROUP] == "job"
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


POLICY = {"minAvailable": 2, "minResources": {"cpu": 4, "nvidia.com/gpu": "8"}}


def test_what_a_tfjob_asks_of_coscheduling_comes_to_its_group_and_pods() -> None:
    policy = {**POLICY, "priorityClass": "high", "scheduleTimeoutSeconds": 30}
    world = a_gang(policy=policy, worker=3)
    assert only_group(world).spec == {
        "minMember": 2,
        "minResources": {"cpu": 4, "nvidia.com/gpu": "8"},
        "scheduleTimeoutSeconds": 30,
    }
    assert a_pod(world)["spec"]["priorityClassName"] == "high"


def test_what_a_tfjob_asks_of_volcano_comes_to_its_group_and_pods() -> None:
    world = a_gang(VOLCANO, {**POLICY, "priorityClass": "high", "queue": "research"}, worker=3)
    assert only_group(world) == observation.Group(
        "scheduling.volcano.sh/v1beta1",
        "job",
        "group-uid",
        {
            "minMember": 2,
            "minResources": {"cpu": 4, "nvidia.com/gpu": "8"},
            "priorityClassName": "high",
            "queue": "research",
        },
    )
    pod = a_pod(world)
    assert pod["metadata"]["annotations"][names.ANNOTATION_POD_GROUP] == "job"
    assert pod["spec"]["schedulerName"] == "volcano"


def test_volcano_puts_a_job_without_queue_where_tfjob_does() -> None:
    assert only_group(a_gang(VOLCANO, worker=2)).spec == {"minMember": 2, "queue": "default"}


def test_what_a_template_says_of_its_scheduler_and_priority_wins() -> None:
    document = builders.manifest(worker=1)
    pod_fields = {"schedulerName": "mine", "priorityClassName": "low"}
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].update(pod_fields)
    document["spec"]["scheduling"] = {"gang": "Coscheduling"}
    document["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "high"}}
    world = builders.World(load.parse_job(document), settings=with_gangs())
    assert pod_fields.items() <= a_pod(world)["spec"].items()


def test_a_scheduling_policy_goes_to_the_scheduler_of_the_installation() -> None:
    job = builders.a_job(worker=2, run_policy={"schedulingPolicy": {"minAvailable": 1}})
    world = builders.World(job, settings=with_gangs(VOLCANO))
    world.settle()
    assert only_group(world).api_version == "scheduling.volcano.sh/v1beta1"


@pytest.mark.parametrize(
    ("scheduler", "policy", "said"),
    [
        (None, {}, "set scheduling.gang to Coscheduling or Volcano or Kubernetes, or start the"),
        (COSCHEDULING, {"queue": "q"}, "queue is 'q', which the gang scheduler Coscheduling"),
        (KUBERNETES, {"minResources": {"cpu": 1}}, "scheduling.gang to Coscheduling or Volcano"),
        (VOLCANO, {"scheduleTimeoutSeconds": 5}, "remove it, or set scheduling.gang to Cosched"),
        (VOLCANO, {"minAvailable": 4}, "minAvailable is 4, and the job has 3 replicas"),
    ],
)
def test_what_a_scheduler_cannot_do_fails_the_job_with_the_remedy_until_it_is_corrected(
    scheduler: types.GangScheduler | None, policy: dict[str, Any], said: str
) -> None:
    job = builders.a_job(worker=3, run_policy={"schedulingPolicy": policy})
    world = builders.World(job, settings=with_gangs(scheduler))
    world.settle()
    assert builders.truth(world, names.Condition.FAILED) == ("True", "InvalidSpec")
    assert said in world.events[-1].message
    assert not world.pods
    world.edit(scheduling_policy=None)
    world.settle()
    assert builders.state_of(world) is names.State.PENDING
    assert len(world.pods) == 3


def test_workers_of_servers_do_not_come_and_go_in_a_group_that_does_not_change() -> None:
    spec = {"scheduling": {"gang": "Kubernetes"}}
    job = builders.a_job(chief=1, worker=2, ps=1, elastic=True, spec=spec)
    world = builders.World(job, settings=with_gangs())
    world.settle()
    assert "whose groups are fixed" in world.events[-1].message
    assert not world.pods


def test_a_job_that_trains_outlives_its_installation_losing_the_scheduler() -> None:
    job = builders.a_job(worker=2, run_policy={"schedulingPolicy": {"minAvailable": 2}})
    world = builders.World(job, settings=with_gangs(COSCHEDULING))
    world.settle()
    world.run()
    world.settings = with_gangs(None)
    world.settle()
    assert builders.state_of(world) is names.State.RUNNING
    assert only_group(world).spec == {"minMember": 2}


def test_on_one_machine_a_gang_is_nothing_special() -> None:
    job = builders.a_job(worker=2, run_policy={"schedulingPolicy": {"queue": "q"}})
    world = builders.World(job)
    world.settle()
    assert len(world.pods) == 2
    assert not world.groups


def test_a_new_attempt_keeps_its_place_in_the_queue() -> None:
    world = a_gang(worker=3)
    before = only_group(world)
    world.run()
    world.exit("job-worker-1", 1)
    world.settle()
    assert world.status.attempt == 2
    assert only_group(world) == before


def test_those_who_have_completed_are_not_waited_for() -> None:
    world = a_gang(chief=1, worker=3, ps=1)
    world.run()
    world.exit("job-worker-0", 0)
    world.settle()
    assert only_group(world).spec == {"minMember": 4}
    del world.pods["job-worker-0"]
    world.exit("job-worker-1", 1)
    world.settle()
    assert world.pods["job-worker-1"].replica_attempt == 1
    assert len(world.pods) == only_group(world).spec["minMember"]


def test_the_group_follows_the_workers_that_come_and_go() -> None:
    world = a_gang(worker=2, elastic=True)
    world.run()
    world.advance(100)
    world.scale(3)
    world.settle()
    assert only_group(world).spec == {"minMember": 3}


def test_a_job_that_does_not_train_holds_no_group() -> None:
    world = a_gang(worker=2)
    world.edit(suspend=True)
    world.settle()
    assert not world.groups
    world.edit(suspend=False)
    world.settle()
    assert only_group(world).spec == {"minMember": 2}
    world.run()
    for name in list(world.pods):
        world.exit(name, 0)
    world.settle()
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert not world.groups


def test_a_job_that_changes_its_scheduler_leaves_no_group_behind() -> None:
    world = a_gang(COSCHEDULING, worker=2)
    scheduling = types.Scheduling(gang=VOLCANO)
    world.edit_spec(scheduling=scheduling)
    world.settle()
    assert only_group(world).api_version == "scheduling.volcano.sh/v1beta1"


def test_a_group_that_somebody_deletes_is_recreated() -> None:
    world = a_gang(worker=2)
    world.groups.clear()
    world.settle()
    assert only_group(world).spec == {"minMember": 2}


def test_each_attempt_has_another_group_of_kubernetes_for_they_cannot_change() -> None:
    world = a_gang(KUBERNETES, worker=3)
    group = only_group(world)
    assert (group.api_version, group.name) == ("scheduling.k8s.io/v1beta1", "job-1")
    assert group.spec == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    pod = a_pod(world)
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "job-1"}
    assert "schedulerName" not in pod["spec"]
    world.run()
    world.exit("job-worker-1", 1)
    world.settle()
    assert only_group(world).name == "job-2"


@pytest.mark.parametrize(
    ("of_template", "of_policy", "expected"),
    [(None, "high", "high"), ("low", "high", "low"), ("low", None, "low"), ("", "high", "")],
)
def test_a_group_of_kubernetes_has_the_priority_class_of_its_pods(
    of_template: str | None, of_policy: str | None, expected: str
) -> None:
    document = builders.manifest(worker=1)
    if of_template is not None:
        template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
        template["spec"]["priorityClassName"] = of_template
    document["spec"]["scheduling"] = {"gang": "Kubernetes"}
    if of_policy is not None:
        document["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": of_policy}}
    world = builders.World(load.parse_job(document), settings=with_gangs())
    world.settle()
    assert a_pod(world)["spec"]["priorityClassName"] == expected
    assert only_group(world).spec.get("priorityClassName", "") == expected


def before_its_pods(document: dict[str, Any]) -> builders.World:
    """Return a gang of Kubernetes that has its group, and whose pods are refused."""
    document["spec"]["scheduling"] = {"gang": "Kubernetes"}
    world = builders.World(load.parse_job(document), settings=with_gangs())
    decided = world.decide()
    others = [manifest for manifest in decided.creations if manifest["kind"] != "Pod"]
    world.carry_out(dataclasses.replace(decided, creations=tuple(others)))
    assert only_group(world).name == "job-1"
    return world


def edit(world: builders.World, document: dict[str, Any]) -> None:
    """Apply a changed manifest; the status stays."""
    job = load.parse_job(document)
    world.job = job.model_copy(update={"status": world.status})


def assert_remade(world: builders.World) -> observation.Group:
    """Return the group that the job has once the one that is not right is gone."""
    decided = world.decide()
    assert [deletion.name for deletion in decided.deletions] == ["job-1"]
    assert not decided.creations
    world.settle()
    assert {pod.attempt for pod in world.pods.values()} == {1}
    return only_group(world)


def test_workers_that_leave_before_there_are_pods_are_not_waited_for() -> None:
    document = builders.a_manifest(worker=3, elastic=True)
    world = before_its_pods(document)
    assert only_group(world).spec["schedulingPolicy"] == {"gang": {"minCount": 3}}
    document["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 2
    edit(world, document)
    assert assert_remade(world).spec["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert len(world.pods) == 2


def test_another_priority_class_before_there_are_pods_comes_to_the_group_too() -> None:
    document = builders.manifest(worker=2)
    world = before_its_pods(document)
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    template["priorityClassName"] = "urgent"
    edit(world, document)
    assert assert_remade(world).spec["priorityClassName"] == "urgent"


def test_a_priority_class_that_the_api_server_fills_in_is_none_of_the_jobs() -> None:
    world = before_its_pods(builders.manifest(worker=2))
    [(key, group)] = world.groups.items()
    spec = {**group.spec, "priorityClassName": "by-default"}
    world.groups[key] = dataclasses.replace(group, spec=spec)
    assert not world.decide().deletions


def test_a_group_with_pods_stays_until_the_next_attempt() -> None:
    document = builders.manifest(worker=2)
    world = before_its_pods(document)
    world.settle()
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    template["priorityClassName"] = "urgent"
    edit(world, document)
    world.settle()
    assert "priorityClassName" not in only_group(world).spec
    world.run()
    world.exit("job-worker-1", 1)
    world.settle()
    assert only_group(world).spec["priorityClassName"] == "urgent"


def lose(world: builders.World, pod: str) -> None:
    """Have somebody delete a pod."""
    del world.pods[pod]
    world.settle()


def test_one_that_runs_again_alone_joins_no_group_of_kubernetes() -> None:
    world = a_gang(KUBERNETES, chief=1, worker=2, ps=1)
    world.update("job-chief-0", node="node-1")
    lose(world, "job-worker-1")
    assert world.manifests[-1]["metadata"]["name"] == "job-worker-1"
    assert "schedulingGroup" not in world.manifests[-1]["spec"]
    assert only_group(world).name == "job-1"


@pytest.mark.parametrize(
    "roles", [{"chief": 1, "worker": 2, "ps": 1}, {"worker": 2, "evaluator": 1}]
)
def test_a_gang_that_waits_begins_again_as_a_whole(roles: dict[str, Any]) -> None:
    world = a_gang(KUBERNETES, **roles)
    lose(world, list(world.pods)[-1])
    assert only_group(world).name == "job-2"
    assert {pod.attempt for pod in world.pods.values()} == {2}
    group = {"podGroupName": "job-2"}
    pods = [one for one in world.manifests if one["kind"] == "Pod"][-len(world.pods) :]
    assert all(pod["spec"]["schedulingGroup"] == group for pod in pods)
    assert world.status.restarts.disruption == 1
