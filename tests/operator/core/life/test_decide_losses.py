"""What is decided when something is lost: what runs again, and what counts."""

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits


def test_a_permanent_exit_of_the_trainer_fails_the_job_with_replica_code_and_reason() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=1)
    world.run()
    world.exit("job-worker-0", 65, "model.py: build_model raised\nKeyError: 'why'.")
    world.settle()
    failed = conditions.find(world.status, names.Condition.FAILED)
    assert failed is not None
    assert failed.message == (
        "job-worker-0 exited with code 65 (the user's module, model or data raised an error): "
        "model.py: build_model raised KeyError: 'why'. Correct what the log's last lines name."
    )
    assert world.status.replicas["Worker"].last_exit is not None
    assert world.status.replicas["Worker"].last_exit.code == 65
    assert set(world.pods) == {"job-worker-0"}


def test_the_counts_of_failures_outlast_the_pods() -> None:
    world = builders.a_world(chief=1, worker=2, run_policy={"cleanPodPolicy": "All"})
    world.run()
    world.exit("job-worker-1", 65)
    world.advance(1)
    world.exit("job-worker-0", 65)
    world.settle()
    assert world.pods == {}
    counts = world.status.replicas["Worker"]
    assert (counts.failed, counts.pending) == (2, 0)
    assert counts.last_exit is not None
    assert counts.last_exit.replica == "job-worker-0", "the latest, not the last by name"


def test_a_pod_that_is_deleted_terminates_until_it_has_ended() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=2)
    world.run()
    world.settle()
    world.update("job-worker-0", deleting=True)
    world.update("job-worker-1", deleting=True)
    world.exit("job-worker-1", 0)
    assert world.decide().status.replicas["Worker"].terminating == 1


def test_a_lost_peer_restarts_the_gang_after_all_old_pods_ended() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=1)
    world.run()
    world.settle()
    world.exit("job-worker-0", 137)
    world.step()
    assert world.status.attempt == 2
    assert all(pod.deleting for pod in world.pods.values())
    del world.pods["job-worker-0"]
    world.step()
    assert set(world.pods) == {"job-chief-0"}, "the new gang waits for the last old pod"
    world.settle()
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert builders.state_of(world) is names.State.RESTARTING
    world.run()
    world.settle()
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.restarts.failure == 1
    warned = [event for event in world.events if event.type is decision.EventType.WARNING]
    assert len(warned) == 1


@pytest.mark.parametrize("lost", ["job-chief-0", "job-worker-2"])
@pytest.mark.parametrize("how", ["killed", "deleted"])
def test_a_split_model_restarts_as_a_whole(lost: str, how: str) -> None:
    job = builders.a_split_job({"data": 2, "stage": -1}, chief=1, worker=3)
    world = builders.World(job)
    world.settle()
    world.run()
    world.settle()
    placement = job_status.PlacementStatus(mesh=job_status.MeshStatus(data=2, stage=2))
    reported = world.status.model_copy(update={"placement": placement})
    world.job = world.job.model_copy(update={"status": reported})
    if how == "killed":
        world.exit(lost, 137)
        for other in set(world.pods) - {lost}:
            world.exit(other, 75)
    else:
        del world.pods[lost]
    world.settle()
    assert world.status.attempt == 2
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert len(world.pods) == 4
    restarts = world.status.restarts
    assert (restarts.failure, restarts.disruption) == ((1, 0) if how == "killed" else (0, 1))
    assert world.status.placement == placement, "a decision leaves it to the next report"
    world.run()
    world.settle()
    assert builders.state_of(world) is names.State.RUNNING
    world.exit("job-chief-0", 0)
    world.settle()
    assert builders.state_of(world) is names.State.SUCCEEDED


def test_limit_two_means_three_runs() -> None:
    world = builders.a_world(worker=1, run_policy={"backoffLimit": 2})
    runs = 0
    while not conditions.finished(world.status):
        runs += 1
        world.exit("job-worker-0", 1)
        world.settle()
    assert runs == 3
    assert builders.truth(world, names.Condition.FAILED) == ("True", "BackoffLimitExceeded")


def test_disruptions_do_not_count_against_the_limit() -> None:
    world = builders.a_world(worker=2, run_policy={"backoffLimit": 0})
    for attempt in range(2, 6):
        world.run()
        world.settle()
        del world.pods["job-worker-1"]
        world.settle()
        assert world.status.attempt == attempt
    assert world.status.restarts.disruption == 4
    assert world.status.restarts.failure == 0


def test_when_a_disruption_takes_peers_along_only_the_disruption_counts() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=2, run_policy={"backoffLimit": 0})
    world.run()
    world.settle()
    world.exit("job-chief-0", 75)
    world.update("job-worker-1", phase=observation.Phase.FAILED, disrupted=True)
    world.settle()
    assert world.status.restarts.disruption == 1
    assert world.status.restarts.failure == 0


def test_a_terminating_pod_is_not_a_failed_one() -> None:
    world = builders.a_world(worker=2)
    world.run()
    world.settle()
    world.update("job-worker-1", deleting=True)
    assert not world.step() or world.status.attempt == 1
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.replicas["Worker"].terminating == 1


@pytest.mark.parametrize(("code", "attempt"), [(1, 2), (75, 2), (137, 2), (65, 1), (78, 1)])
def test_a_custom_command_may_say_that_it_would_fail_again(code: int, attempt: int) -> None:
    world = builders.a_world(worker=1)
    world.exit("job-worker-0", code)
    world.settle()
    assert world.status.attempt == attempt
    assert conditions.finished(world.status) is (attempt == 1)


@pytest.mark.parametrize(
    ("policy", "code", "attempt"),
    [
        ("Never", 137, 1),
        ("ExitCode", 1, 1),
        ("ExitCode", 127, 1),
        ("ExitCode", 128, 2),
        ("ExitCode", 137, 2),
        ("OnFailure", 1, 2),
        ("Always", 1, 2),
    ],
)
def test_a_restart_policy_means_what_it_means_in_tfjob(
    policy: str, code: int, attempt: int
) -> None:
    document = builders.manifest(worker=1)
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    world = builders.World(load.parse_job(document))
    world.settle()
    world.exit("job-worker-0", code)
    world.settle()
    assert world.status.attempt == attempt
    assert conditions.finished(world.status) is (attempt == 1)


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
    world = builders.a_world(chief=1, worker=2, ps=1, evaluator=1)
    world.run()
    world.settle()
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.exit(lost, 1)
    world.settle()
    assert {name for name, pod in world.pods.items() if pod.uid != before[name]} == again
    assert world.status.attempt == 1
    assert world.status.restarts.failure == (0 if "evaluator" in lost else 1)


def test_each_run_of_a_replica_alone_is_a_new_attempt() -> None:
    world = builders.a_world(chief=1, worker=2, ps=1)
    for count in (1, 2, 3):
        world.run()
        world.settle()
        world.exit("job-worker-1", 137)
        world.settle()
        assert world.status.replica_attempts == {"worker-1": count}
        assert world.pods["job-worker-1"].replica_attempt == count


def test_the_added_chief_leads_like_one_in_the_manifest() -> None:
    world = builders.a_world(trainer=True, worker=2, ps=1)
    world.run()
    world.settle()
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.replicas["Chief"].desired == 1
    assert world.status.ready == "4/4"
    world.exit("job-chief-0", exits.Exit.PEER_LOST)
    world.settle()
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.exit("job-ps-0", 137)
    world.settle()
    again = {name for name, pod in world.pods.items() if pod.uid != before[name]}
    assert again == {"job-chief-0", "job-ps-0"}
    world.run()
    world.exit("job-chief-0", 0)
    world.settle()
    assert builders.state_of(world) is names.State.SUCCEEDED


def test_an_evaluator_never_fails_training() -> None:
    world = builders.a_world(chief=1, worker=1, evaluator=1, run_policy={"backoffLimit": 1})
    for _ in range(4):
        world.run()
        world.settle()
        if world.pods["job-evaluator-0"].phase is observation.Phase.RUNNING:
            world.exit("job-evaluator-0", 1)
        world.settle()
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.replicas["Evaluator"].failed == 1
    world.exit("job-worker-0", 1)
    world.settle()
    assert world.status.attempt == 2, "the evaluator has not used up the budget of training"
    assert world.status.restarts.failure == 1


def test_a_lost_peer_waits_for_the_exit_that_says_why() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=1)
    world.run()
    world.settle()
    world.exit("job-chief-0", 75)
    world.settle()
    assert world.status.attempt == 1
    assert world.decide().wake_at == world.now + installation.SETTLING
    running = conditions.find(world.status, names.Condition.RUNNING)
    assert running is not None
    assert "job-chief-0 exited with code 75" in running.message
    assert "until 00:00:10Z the operator looks for a loss that caused it" in running.message
    world.exit("job-worker-0", 65)
    world.settle()
    assert builders.truth(world, names.Condition.FAILED) == ("True", "ReplicaFailed")


def test_a_lost_peer_does_not_wait_for_ever() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=1)
    world.run()
    world.settle()
    world.exit("job-chief-0", 75)
    world.settle()
    wake_at = world.decide().wake_at
    assert wake_at is not None
    world.now = wake_at
    world.settle()
    assert world.status.attempt == 2


def test_replicas_lost_at_the_same_time_run_again_in_separate_attempts() -> None:
    world = builders.a_world(chief=1, worker=2, ps=1, evaluator=1)
    world.run()
    world.settle()
    del world.pods["job-chief-0"]
    world.update("job-evaluator-0", phase=observation.Phase.FAILED, disrupted=True)
    world.settle()
    assert world.status.replica_attempts == {"chief-0": 1, "evaluator-0": 1}
    assert len(set(world.created)) == len(world.created)


def test_failures_at_the_same_time_are_counted_one_by_one() -> None:
    world = builders.a_world(chief=1, worker=2, ps=1, run_policy={"backoffLimit": 1})
    world.run()
    world.settle()
    world.exit("job-worker-0", 1)
    world.exit("job-worker-1", 1)
    world.settle()
    assert world.status.restarts.failure == 1
    assert builders.truth(world, names.Condition.FAILED) == ("True", "BackoffLimitExceeded")


def test_the_loss_of_an_evaluator_does_not_hide_that_of_a_gang() -> None:
    world = builders.a_world(chief=1, worker=1, evaluator=1)
    world.run()
    world.settle()
    del world.pods["job-chief-0"]
    world.update("job-evaluator-0", phase=observation.Phase.FAILED, disrupted=True)
    world.settle()
    assert world.status.attempt == 2
    assert world.status.restarts.disruption == 1
    assert {pod.attempt for pod in world.pods.values()} == {2}
