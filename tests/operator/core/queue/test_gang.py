"""Which PodGroup a job has in each part of its life, and how its pods name it."""

from typing import Any

import pytest

from testing.operator import builders, gangs
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import observation
from tfparallel_operator.core.queue import coscheduling, gang, volcano

COSCHEDULING = types.GangScheduler.COSCHEDULING
VOLCANO = types.GangScheduler.VOLCANO
KUBERNETES = types.GangScheduler.KUBERNETES
POLICY = {"minAvailable": 2, "minResources": {"cpu": 4, "nvidia.com/gpu": "8"}}


def test_each_gang_scheduler_has_a_plugin() -> None:
    assert list(gang.PLUGINS) == list(types.GangScheduler)


def test_without_a_request_no_gang_is_created() -> None:
    world = builders.World(builders.a_job(worker=2), settings=gangs.with_gangs(COSCHEDULING))
    world.run_until_quiet()
    assert len(world.pods) == 2
    assert not world.groups
    assert "schedulerName" not in gangs.a_pod(world)["spec"]


def test_what_a_tfjob_asks_of_coscheduling_comes_to_its_group_and_pods() -> None:
    policy = {**POLICY, "priorityClass": "high", "scheduleTimeoutSeconds": 30}
    world = gangs.a_gang(policy=policy, worker=3)
    assert gangs.only_group(world).spec == {
        "minMember": 2,
        "minResources": {"cpu": 4, "nvidia.com/gpu": "8"},
        "scheduleTimeoutSeconds": 30,
    }
    assert gangs.a_pod(world)["spec"]["priorityClassName"] == "high"


def test_all_pods_are_of_one_group_the_evaluator_and_servers_too() -> None:
    world = gangs.a_gang(chief=1, worker=3, ps=2, evaluator=1)
    assert gangs.only_group(world) == observation.Group(
        "scheduling.x-k8s.io/v1alpha1", "job", "group-uid", {"minMember": 7}
    )
    pod = gangs.a_pod(world)
    assert pod["metadata"]["labels"][coscheduling.POD_GROUP_LABEL] == "job"
    assert pod["spec"]["schedulerName"] == "scheduler-plugins-scheduler"


def test_what_a_tfjob_asks_of_volcano_comes_to_its_group_and_pods() -> None:
    world = gangs.a_gang(
        VOLCANO, {**POLICY, "priorityClass": "high", "queue": "research"}, worker=3
    )
    assert gangs.only_group(world) == observation.Group(
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
    pod = gangs.a_pod(world)
    assert pod["metadata"]["annotations"][volcano.POD_GROUP_ANNOTATION] == "job"
    assert pod["spec"]["schedulerName"] == "volcano"


def test_volcano_puts_a_job_without_queue_where_tfjob_does() -> None:
    assert gangs.only_group(gangs.a_gang(VOLCANO, worker=2)).spec == {
        "minMember": 2,
        "queue": "default",
    }


def test_what_a_template_says_of_its_scheduler_and_priority_wins() -> None:
    document = builders.manifest(worker=1)
    pod_fields = {"schedulerName": "mine", "priorityClassName": "low"}
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"].update(pod_fields)
    document["spec"]["scheduling"] = {"gang": "Coscheduling"}
    document["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "high"}}
    world = builders.World(load.parse_job(document), settings=gangs.with_gangs())
    assert pod_fields.items() <= gangs.a_pod(world)["spec"].items()


def test_a_scheduling_policy_goes_to_the_scheduler_of_the_installation() -> None:
    job = builders.a_job(worker=2, run_policy={"schedulingPolicy": {"minAvailable": 1}})
    world = builders.World(job, settings=gangs.with_gangs(VOLCANO))
    world.run_until_quiet()
    assert gangs.only_group(world).api_version == "scheduling.volcano.sh/v1beta1"


@pytest.mark.parametrize(
    ("scheduler", "policy", "sentence"),
    [
        (None, {}, "set scheduling.gang to Coscheduling or Volcano or Kubernetes, or start the"),
        (COSCHEDULING, {"queue": "q"}, "queue is 'q', which the gang scheduler Coscheduling"),
        (KUBERNETES, {"minResources": {"cpu": 1}}, "scheduling.gang to Coscheduling or Volcano"),
        (VOLCANO, {"scheduleTimeoutSeconds": 5}, "remove it, or set scheduling.gang to Cosched"),
        (VOLCANO, {"minAvailable": 4}, "minAvailable is 4, and the job has 3 replicas"),
    ],
)
def test_what_a_scheduler_cannot_do_fails_the_job_with_the_remedy_until_it_is_corrected(
    scheduler: types.GangScheduler | None, policy: dict[str, Any], sentence: str
) -> None:
    job = builders.a_job(worker=3, run_policy={"schedulingPolicy": policy})
    world = builders.World(job, settings=gangs.with_gangs(scheduler))
    world.run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "InvalidSpec")
    assert sentence in world.events[-1].message
    assert not world.pods
    world.edit(scheduling_policy=None).run_until_quiet()
    assert builders.state_of(world) is names.State.PENDING
    assert len(world.pods) == 3


def test_a_job_that_trains_outlives_its_installation_losing_the_scheduler() -> None:
    job = builders.a_job(worker=2, run_policy={"schedulingPolicy": {"minAvailable": 2}})
    world = builders.World(job, settings=gangs.with_gangs(COSCHEDULING))
    world.run_until_quiet()
    world.run()
    world.settings = gangs.with_gangs(None)
    world.run_until_quiet()
    assert builders.state_of(world) is names.State.RUNNING
    assert gangs.only_group(world).spec == {"minMember": 2}


def test_on_one_machine_a_gang_is_nothing_special() -> None:
    job = builders.a_job(worker=2, run_policy={"schedulingPolicy": {"queue": "q"}})
    world = builders.World(job)
    world.run_until_quiet()
    assert len(world.pods) == 2
    assert not world.groups


def test_a_new_attempt_keeps_its_place_in_the_queue() -> None:
    world = gangs.a_gang(worker=3)
    before = gangs.only_group(world)
    world.run()
    world.exit("job-worker-1", 1).run_until_quiet()
    assert world.status.attempt == 2
    assert gangs.only_group(world) == before


def test_those_who_have_completed_are_not_waited_for() -> None:
    world = gangs.a_gang(chief=1, worker=3, ps=1)
    world.run()
    world.exit("job-worker-0", 0).run_until_quiet()
    assert gangs.only_group(world).spec == {"minMember": 4}
    del world.pods["job-worker-0"]
    world.exit("job-worker-1", 1).run_until_quiet()
    assert world.pods["job-worker-1"].replica_attempt == 1
    assert len(world.pods) == gangs.only_group(world).spec["minMember"]


def test_the_group_follows_the_workers_that_come_and_go() -> None:
    world = gangs.a_gang(worker=2, elastic=True)
    world.run()
    world.advance(100)
    world.scale(3).run_until_quiet()
    assert gangs.only_group(world).spec == {"minMember": 3}


def test_a_job_that_does_not_train_holds_no_group() -> None:
    world = gangs.a_gang(worker=2)
    world.edit(suspend=True).run_until_quiet()
    assert not world.groups
    world.edit(suspend=False).run_until_quiet()
    assert gangs.only_group(world).spec == {"minMember": 2}
    world.run()
    for name in list(world.pods):
        world.exit(name, 0)
    world.run_until_quiet()
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert not world.groups


def test_a_job_that_changes_its_scheduler_leaves_no_group_behind() -> None:
    world = gangs.a_gang(COSCHEDULING, worker=2)
    scheduling = types.Scheduling(gang=VOLCANO)
    world.edit_spec(scheduling=scheduling).run_until_quiet()
    assert gangs.only_group(world).api_version == "scheduling.volcano.sh/v1beta1"


def test_a_group_that_somebody_deletes_is_recreated() -> None:
    world = gangs.a_gang(worker=2)
    world.groups.clear()
    world.run_until_quiet()
    assert gangs.only_group(world).spec == {"minMember": 2}
