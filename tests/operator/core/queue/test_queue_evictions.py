"""Jobs in a queue of Kueue: what becomes of their quota when they are evicted, restart or end."""

import dataclasses

import pytest

from testing.operator import builders, queues
from tfparallel_operator.api import names


def test_preempted_it_ends_its_pods_then_gives_the_quota_back_and_waits() -> None:
    world = queues.queued_world()
    queues.admit(world)
    world.run().run_until_quiet()
    the_message = "to make place for another"
    kueue_workload = queues.workload_of(world)
    evicted = {
        "type": "Evicted",
        "status": "True",
        "reason": "Preempted",
        "message": the_message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    others = tuple(
        condition for condition in kueue_workload.conditions if condition["type"] != "Evicted"
    )
    world.workload = dataclasses.replace(kueue_workload, conditions=(*others, evicted))
    world.step()
    assert all(pod.deleting for pod in world.pods.values())
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobEvicted")
    world.step()
    assert queues.conditions_of(world)["QuotaReserved"][0] == "True", "pods still use it"
    world.run_until_quiet()
    assert not world.pods
    assert queues.conditions_of(world)["QuotaReserved"] == ("False", "Pending")
    assert queues.conditions_of(world)["Admitted"] == ("False", "NoReservation")
    assert queues.conditions_of(world)["Requeued"] == ("True", "Preempted")
    assert queues.conditions_of(world)["PodsReady"] == ("False", "WaitForStart")
    assert queues.workload_of(world).admission == {}
    assert builders.state_of(world) is names.State.PENDING
    assert builders.truth(world, names.ConditionType.RUNNING) == ("False", "JobEvicted")
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)
    assert world.status.attempt == 1


def test_admitted_again_it_begins_a_new_attempt() -> None:
    world = queues.queued_world(run_policy={"activeDeadlineSeconds": 100, "backoffLimit": 0})
    queues.admit(world)
    world.run()
    queues.evict(world)
    world.advance(1000).run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) is None, "waiting is not running"
    queues.admit(world)
    assert world.status.attempt == 2
    assert world.status.start_time == world.now
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert world.events[-1].reason == "JobAdmitted"
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)


@pytest.mark.parametrize("reason", ["PodsReadyTimeout", "AdmissionCheck", "ClusterQueueStopped"])
def test_after_other_evictions_kueue_says_when_it_queues_again(reason: str) -> None:
    world = queues.queued_world()
    queues.admit(world)
    queues.evict(world, reason)
    assert queues.conditions_of(world)["Requeued"] == ("False", reason)


def test_a_workload_that_somebody_stops_has_no_pods_and_goes_on_when_it_is_let() -> None:
    world = queues.queued_world()
    queues.admit(world)
    queues.set_conditions(world, active=False)
    assert not world.pods
    assert queues.conditions_of(world)["QuotaReserved"][0] == "True", (
        "Kueue has not said yet that it is evicted"
    )
    assert "spec.active is false" in queues.message_of(world)
    queues.evict(world, "Deactivated")
    assert queues.conditions_of(world)["QuotaReserved"][0] == "False"
    queues.set_conditions(world, active=True)
    assert queues.workload_of(world).uid == "workload-1", "its place in the queue is kept"
    queues.admit(world)
    assert world.status.attempt == 2


def test_restarts_keep_the_admission() -> None:
    world = queues.queued_world()
    queues.admit(world)
    world.run().run_until_quiet()
    world.exit("job-worker-0", 1).run_until_quiet()
    assert world.status.attempt == 2
    assert len(world.pods) == 3
    assert queues.conditions_of(world)["QuotaReserved"][0] == "True"
    assert len([manifest for manifest in world.manifests if manifest["kind"] == "Workload"]) == 1
    assert queues.pod_manifests(world)[-1]["spec"]["nodeSelector"] == {"cloud.example/spot": "true"}


def test_kueue_learns_of_starts_losses_and_recoveries() -> None:
    world = queues.queued_world()
    queues.admit(world)
    assert queues.conditions_of(world)["PodsReady"] == ("False", "WaitForStart")
    world.run().run_until_quiet()
    assert queues.conditions_of(world)["PodsReady"] == ("True", "Started")
    world.exit("job-worker-0", 1).run_until_quiet()
    assert queues.conditions_of(world)["PodsReady"] == ("False", "WaitForRecovery")
    world.run().run_until_quiet()
    assert queues.conditions_of(world)["PodsReady"] == ("True", "Recovered")


@pytest.mark.parametrize(("code", "reason"), [(0, "Succeeded"), (1, "Failed")])
def test_at_the_end_the_quota_is_free_when_the_last_pod_has_ended(code: int, reason: str) -> None:
    world = queues.queued_world(
        run_policy={"backoffLimit": 0, "cleanPodPolicy": "None"}, chief=1, worker=1
    )
    queues.admit(world)
    world.run().run_until_quiet()
    world.exit("job-chief-0", code)
    world.advance(60).run_until_quiet()
    assert builders.state_of(world) == reason
    assert "Finished" not in queues.conditions_of(world), "a worker still has its devices"
    world.update("job-worker-0", lingers=True)
    world.exit("job-worker-0", 0).run_until_quiet()
    assert "Finished" not in queues.conditions_of(world), "its sidecar still has them"
    world.update("job-worker-0", lingers=False).run_until_quiet()
    assert queues.conditions_of(world)["Finished"] == ("True", reason)
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobFinished")
    writes = world.writes
    world.run_until_quiet()
    assert world.writes == writes


def test_success_that_comes_with_an_eviction_is_success() -> None:
    world = queues.queued_world()
    queues.admit(world)
    world.run().run_until_quiet()
    world.exit("job-chief-0", 0)
    queues.evict(world)
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert queues.conditions_of(world)["Finished"] == ("True", "Succeeded")
