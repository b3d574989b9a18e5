"""What runs again after a loss, and in which attempt."""

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, names, policies
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.life import restarts
from tfparallel_trainer.contract import exits


def test_a_lost_peer_restarts_the_gang_after_all_old_pods_ended() -> None:
    world = builders.running(trainer=True, chief=1, worker=1)
    world.exit("job-worker-0", 137)
    world.step()
    assert world.status.attempt == 2
    assert all(pod.deleting for pod in world.pods.values())
    del world.pods["job-worker-0"]
    world.step()
    assert set(world.pods) == {"job-chief-0"}, "the new gang waits for the last old pod"
    world.run_until_quiet()
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert builders.state_of(world) is names.State.RESTARTING
    world.run().run_until_quiet()
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.restarts.failure == 1
    warned = [event for event in world.events if event.type is decision.EventType.WARNING]
    assert len(warned) == 1


@pytest.mark.parametrize("lost", ["job-chief-0", "job-worker-2"])
@pytest.mark.parametrize("how", ["killed", "deleted"])
def test_a_split_model_restarts_as_a_whole(lost: str, how: str) -> None:
    job = builders.a_split_job({"data": 2, "stage": -1}, chief=1, worker=3)
    world = builders.World(job)
    world.run_until_quiet()
    world.run().run_until_quiet()
    placement = job_status.PlacementStatus(mesh=job_status.MeshStatus(data=2, stage=2))
    reported = world.status.model_copy(update={"placement": placement})
    world.job = world.job.model_copy(update={"status": reported})
    if how == "killed":
        world.exit(lost, 137)
        for other in set(world.pods) - {lost}:
            world.exit(other, 75)
    else:
        del world.pods[lost]
    world.run_until_quiet()
    assert world.status.attempt == 2
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert len(world.pods) == 4
    counted = world.status.restarts
    assert (counted.failure, counted.disruption) == ((1, 0) if how == "killed" else (0, 1))
    assert world.status.placement == placement, "a decision leaves it to the next report"
    world.run().run_until_quiet()
    assert builders.state_of(world) is names.State.RUNNING
    world.exit("job-chief-0", 0).run_until_quiet()
    assert builders.state_of(world) is names.State.SUCCEEDED


@pytest.mark.parametrize(
    ("lost", "again"),
    [
        ("job-worker-1", {"job-worker-1"}),
        ("job-chief-0", {"job-chief-0"}),
        ("job-ps-0", {"job-ps-0", "job-chief-0"}),
        ("job-evaluator-0", {"job-evaluator-0"}),
    ],
)
def test_with_parameter_servers_only_what_has_to_is_restarted(lost: str, again: set[str]) -> None:
    world = builders.running(chief=1, worker=2, ps=1, evaluator=1)
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.exit(lost, 1).run_until_quiet()
    assert {name for name, pod in world.pods.items() if pod.uid != before[name]} == again
    assert world.status.attempt == 1
    assert world.status.restarts.failure == (0 if "evaluator" in lost else 1)


def test_each_run_of_a_replica_alone_is_a_new_attempt() -> None:
    world = builders.a_world(chief=1, worker=2, ps=1)
    for count in (1, 2, 3):
        world.run().run_until_quiet()
        world.exit("job-worker-1", 137).run_until_quiet()
        assert world.status.replica_attempts == {"worker-1": count}
        assert world.pods["job-worker-1"].replica_attempt == count


def test_the_added_chief_leads_like_one_in_the_manifest() -> None:
    world = builders.running(trainer=True, worker=2, ps=1)
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.replicas["Chief"].desired == 1
    assert world.status.ready == "4/4"
    world.exit("job-chief-0", exits.Exit.PEER_LOST).run_until_quiet()
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.exit("job-ps-0", 137).run_until_quiet()
    again = {name for name, pod in world.pods.items() if pod.uid != before[name]}
    assert again == {"job-chief-0", "job-ps-0"}
    world.run()
    world.exit("job-chief-0", 0).run_until_quiet()
    assert builders.state_of(world) is names.State.SUCCEEDED


def test_replicas_lost_at_the_same_time_run_again_in_separate_attempts() -> None:
    world = builders.running(chief=1, worker=2, ps=1, evaluator=1)
    del world.pods["job-chief-0"]
    world.update("job-evaluator-0", phase=observation.Phase.FAILED, disrupted=True)
    world.run_until_quiet()
    assert world.status.replica_attempts == {"chief-0": 1, "evaluator-0": 1}
    assert len(set(world.created)) == len(world.created)


def test_the_loss_of_an_evaluator_does_not_hide_that_of_a_gang() -> None:
    world = builders.running(chief=1, worker=1, evaluator=1)
    del world.pods["job-chief-0"]
    world.update("job-evaluator-0", phase=observation.Phase.FAILED, disrupted=True)
    world.run_until_quiet()
    assert world.status.attempt == 2
    assert world.status.restarts.disruption == 1
    assert {pod.attempt for pod in world.pods.values()} == {2}


def test_a_vanished_evaluator_waits_while_another_loss_settles() -> None:
    world = builders.running(worker=2, evaluator=1)
    world.exit("job-worker-1", 75)
    del world.pods["job-evaluator-0"]
    before = list(world.created)
    world.step()
    world.step()
    assert world.created == before
    world.advance(20).run_until_quiet()
    attempts = [attempt for name, attempt, _ in world.created if name == "job-evaluator-0"]
    assert attempts == [1, 2]


def test_restarts_of_both_kinds_are_counted_together() -> None:
    older = job_status.JobStatus.model_validate({"restarts": {"failure": 1, "disruption": 1}})
    assert older.restart_count == 2
    newer = restarts.count(older, policies.Cause.DISRUPTION)
    assert newer.restart_count == 3
    assert restarts.count(newer, policies.Cause.DISRUPTION, -1).restart_count == 2


def test_a_cause_that_an_older_operator_has_not_counted_is_not_counted_below_zero() -> None:
    older = job_status.JobStatus.model_validate({"restarts": {"failure": 1}})
    changed = restarts.count(older, policies.Cause.RETRYABLE_EXIT, -1)
    assert (changed.restarts.failure, changed.restart_causes) == (0, {})
