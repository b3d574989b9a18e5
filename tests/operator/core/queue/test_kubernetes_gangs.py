"""Which PodGroup of Kubernetes' own scheduler a job has, and when the operator replaces it."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders, gangs
from tfparallel_operator.api import load, types
from tfparallel_operator.core import observation

KUBERNETES = types.GangScheduler.KUBERNETES


def test_workers_of_servers_do_not_come_and_go_in_a_group_that_does_not_change() -> None:
    spec = {"scheduling": {"gang": "Kubernetes"}}
    job = builders.a_job(chief=1, worker=2, ps=1, elastic=True, spec=spec)
    world = builders.World(job, settings=gangs.with_gangs())
    world.run_until_quiet()
    assert "whose groups are fixed" in world.events[-1].message
    assert not world.pods


def test_each_attempt_has_another_group_of_kubernetes_for_they_cannot_change() -> None:
    world = gangs.a_gang(KUBERNETES, worker=3)
    group = gangs.only_group(world)
    assert (group.api_version, group.name) == ("scheduling.k8s.io/v1beta1", "job-1")
    assert group.spec == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    pod = gangs.a_pod(world)
    assert pod["spec"]["schedulingGroup"] == {"podGroupName": "job-1"}
    assert "schedulerName" not in pod["spec"]
    world.run()
    world.exit("job-worker-1", 1).run_until_quiet()
    assert gangs.only_group(world).name == "job-2"


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
    world = builders.World(load.parse_job(document), settings=gangs.with_gangs())
    world.run_until_quiet()
    assert gangs.a_pod(world)["spec"]["priorityClassName"] == expected
    assert gangs.only_group(world).spec.get("priorityClassName", "") == expected


def before_its_pods(document: dict[str, Any]) -> builders.World:
    """Return a gang of Kubernetes that has its group, and whose pods are refused."""
    document["spec"]["scheduling"] = {"gang": "Kubernetes"}
    world = builders.World(load.parse_job(document), settings=gangs.with_gangs())
    decided = world.decide()
    others = [manifest for manifest in decided.creations if manifest["kind"] != "Pod"]
    world.carry_out(dataclasses.replace(decided, creations=tuple(others)))
    assert gangs.only_group(world).name == "job-1"
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
    world.run_until_quiet()
    assert {pod.attempt for pod in world.pods.values()} == {1}
    return gangs.only_group(world)


def test_workers_that_leave_before_there_are_pods_are_not_waited_for() -> None:
    document = builders.a_manifest(worker=3, elastic=True)
    world = before_its_pods(document)
    assert gangs.only_group(world).spec["schedulingPolicy"] == {"gang": {"minCount": 3}}
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
    world.run_until_quiet()
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    template["priorityClassName"] = "urgent"
    edit(world, document)
    world.run_until_quiet()
    assert "priorityClassName" not in gangs.only_group(world).spec
    world.run()
    world.exit("job-worker-1", 1).run_until_quiet()
    assert gangs.only_group(world).spec["priorityClassName"] == "urgent"


def lose(world: builders.World, pod: str) -> None:
    """Have somebody delete a pod."""
    del world.pods[pod]
    world.run_until_quiet()


def test_one_that_runs_again_alone_joins_no_group_of_kubernetes() -> None:
    world = gangs.a_gang(KUBERNETES, chief=1, worker=2, ps=1)
    world.update("job-chief-0", node="node-1")
    lose(world, "job-worker-1")
    assert world.manifests[-1]["metadata"]["name"] == "job-worker-1"
    assert "schedulingGroup" not in world.manifests[-1]["spec"]
    assert gangs.only_group(world).name == "job-1"


@pytest.mark.parametrize(
    "roles", [{"chief": 1, "worker": 2, "ps": 1}, {"worker": 2, "evaluator": 1}]
)
def test_a_gang_that_waits_begins_again_as_a_whole(roles: dict[str, Any]) -> None:
    world = gangs.a_gang(KUBERNETES, **roles)
    lose(world, list(world.pods)[-1])
    assert gangs.only_group(world).name == "job-2"
    assert {pod.attempt for pod in world.pods.values()} == {2}
    group = {"podGroupName": "job-2"}
    pods = [pod for pod in world.manifests if pod["kind"] == "Pod"][-len(world.pods) :]
    assert all(pod["spec"]["schedulingGroup"] == group for pod in pods)
    assert world.status.restarts.disruption == 1
