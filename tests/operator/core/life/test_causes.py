"""Why replicas are lost, and what the status says of it."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names, policies, types
from tfparallel_operator.core import installation, layout, observation, replicas
from tfparallel_operator.core.life import failure
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits

WORKER = replicas.Replica(types.Role.WORKER, 0)


def ended(
    code: int, why: str = "Error", *, of_source: bool = False, **more: Any
) -> observation.Pod:
    how = observation.Exit(code, why, "", builders.START, of_source)
    failed = observation.Phase.FAILED
    return observation.Pod("job-worker-0", "u", WORKER, 1, 0, failed, exit=how, **more)


def cause_of(pod: observation.Pod, policy: str | None, *, trainer: bool = False) -> policies.Cause:
    """Return why a worker with this restart policy was lost."""
    document = builders.manifest(trainer=trainer, worker=1)
    if policy is not None:
        document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    return failure.cause(layout.build(load.parse_job(document)), pod)


@pytest.mark.parametrize(
    ("pod", "policy", "cause"),
    [
        (ended(1, disrupted=True), None, policies.Cause.DISRUPTION),
        (ended(143, deleting=True), None, policies.Cause.DISRUPTION),
        (ended(-1, "Evicted", disrupted=True), None, policies.Cause.DISRUPTION),
        (ended(-1, "UnexpectedAdmissionError"), None, policies.Cause.INFRASTRUCTURE),
        (ended(-1, "OutOfcpu"), None, policies.Cause.INFRASTRUCTURE),
        (ended(-1, "StartError"), None, policies.Cause.RETRYABLE_EXIT),
        (ended(137, "OOMKilled"), None, policies.Cause.OUT_OF_MEMORY),
        (ended(77), None, policies.Cause.OUT_OF_MEMORY),
        (ended(79), None, policies.Cause.STALL),
        (ended(1), None, policies.Cause.RETRYABLE_EXIT),
        (ended(65), None, policies.Cause.PERMANENT_EXIT),
        (ended(1), "ExitCode", policies.Cause.PERMANENT_EXIT),
        (ended(137), "ExitCode", policies.Cause.RETRYABLE_EXIT),
        (ended(1), "Never", policies.Cause.PERMANENT_EXIT),
        (ended(65), "OnFailure", policies.Cause.RETRYABLE_EXIT),
        (ended(73), None, policies.Cause.RETRYABLE_EXIT),
        (ended(73, of_source=True), None, policies.Cause.INFRASTRUCTURE),
        (ended(73, of_source=True), "Never", policies.Cause.INFRASTRUCTURE),
        (ended(78, of_source=True), None, policies.Cause.PERMANENT_EXIT),
        (ended(75), None, policies.Cause.RETRYABLE_EXIT),
        (ended(78), None, policies.Cause.PERMANENT_EXIT),
        (ended(137), "Never", policies.Cause.PERMANENT_EXIT),
        (ended(127), "ExitCode", policies.Cause.PERMANENT_EXIT),
        (ended(128), "ExitCode", policies.Cause.RETRYABLE_EXIT),
        (ended(1), "OnFailure", policies.Cause.RETRYABLE_EXIT),
        (ended(1), "Always", policies.Cause.RETRYABLE_EXIT),
    ],
)
def test_the_cause_of_a_loss(
    pod: observation.Pod, policy: str | None, cause: policies.Cause
) -> None:
    assert cause_of(pod, policy) is cause


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (75, policies.Cause.RETRYABLE_EXIT),
        (65, policies.Cause.PERMANENT_EXIT),
        (3, policies.Cause.PERMANENT_EXIT),
        (139, policies.Cause.RETRYABLE_EXIT),
    ],
)
def test_the_shipped_trainers_codes_go_before_those_of_tfjob(
    code: int, cause: policies.Cause
) -> None:
    assert cause_of(ended(code), "ExitCode", trainer=True) is cause


@pytest.mark.parametrize(("code", "attempt"), [(75, 2), (65, 1)])
def test_a_loss_is_retried_unless_its_cause_is_permanent(code: int, attempt: int) -> None:
    world = builders.a_world(worker=1)
    world.exit("job-worker-0", code).run_until_quiet()
    assert world.status.attempt == attempt
    assert conditions.finished(world.status) is (attempt == 1)


def test_a_permanent_exit_of_the_trainer_fails_the_job_with_replica_code_and_reason() -> None:
    world = builders.a_world(trainer=True, chief=1, worker=1)
    world.run()
    world.exit("job-worker-0", 65, "model.py: build_model raised\nKeyError: 'why'.")
    world.run_until_quiet()
    failed = world.condition(names.ConditionType.FAILED)
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
    world.exit("job-worker-0", 65).run_until_quiet()
    assert world.pods == {}
    counts = world.status.replicas["Worker"]
    assert (counts.failed, counts.pending) == (2, 0)
    assert counts.last_exit is not None
    assert counts.last_exit.replica == "job-worker-0", "the latest, not the last by name"


def test_a_pod_that_is_being_deleted_terminates_and_is_no_failed_one() -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 0})
    world.update("job-worker-0", deleting=True)
    world.step()
    assert world.status.attempt == 1
    assert world.status.state is names.State.RUNNING
    assert world.status.replicas["Worker"].terminating == 1
    world.exit("job-worker-0", 143)
    assert world.decide().status.replicas["Worker"].terminating == 0
    world.run_until_quiet()
    assert world.status.attempt == 2
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)


def test_peers_of_a_pod_that_is_being_taken_fail_in_consequence() -> None:
    world = builders.running(chief=1, worker=2, run_policy={"backoffLimit": 0})
    preempted = {"reason": "PreemptionByScheduler", "message": "default-scheduler: preempting."}
    world.update("job-worker-1", disrupted=True, **preempted)
    world.exit("job-chief-0", 1).run_until_quiet()
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Disruption": 1}
    assert world.events[-1].message == (
        "job-worker-1 is being deleted or evicted (PreemptionByScheduler): default-scheduler:"
        " preempting; all replicas run again (a disruption)"
    )


def test_a_failure_of_a_gang_waits_for_signs_that_the_cluster_took_a_replica() -> None:
    world = builders.running(chief=1, worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", 1).run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) is None
    assert world.decide().wake_at == world.now + installation.SETTLING
    world.update("job-chief-0", disrupted=True).run_until_quiet()
    assert (world.status.attempt, world.status.restarts.disruption) == (2, 1)


def test_a_failure_of_a_gang_counts_once_it_has_settled_without_signs() -> None:
    world = builders.running(chief=1, worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", 1).run_until_quiet()
    world.now += installation.SETTLING
    world.run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")


def test_a_lost_peer_waits_for_the_exit_that_says_why() -> None:
    world = builders.running(trainer=True, chief=1, worker=1)
    world.exit("job-chief-0", exits.Exit.PEER_LOST).run_until_quiet()
    assert world.status.attempt == 1
    running = world.condition(names.ConditionType.RUNNING)
    sentences = running.message.split("; ")
    assert sentences[0] == world.status.ready + " replicas run or have completed"
    assert sentences[1].startswith("job-chief-0 exited with code 75 ")
    assert (
        sentences[2]
        == "the operator waits until 00:00:10Z for an earlier loss that explains this one"
    )
    world.exit("job-worker-0", 65).run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "ReplicaFailed")


def test_a_pod_that_vanishes_before_its_peers_exist_is_not_recreated() -> None:
    world = builders.World(builders.a_job(chief=1, worker=2))
    world.step(writes=4)
    assert list(world.pods) == ["job-chief-0"]
    world.step(writes=1)
    assert world.status.replicas["Chief"].seen == "0"
    del world.pods["job-chief-0"]
    world.run_until_quiet()
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Disruption": 1}
    assert len(set(world.created)) == len(world.created)


def test_a_maintenance_notice_says_so() -> None:
    world = builders.running(chief=1, worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", exits.TENSORFLOW_RESTART)
    world.exit("job-chief-0", exits.Exit.PEER_LOST)
    world.step()
    restarting = conditions.find_true(world.status, names.ConditionType.RESTARTING)
    assert restarting is not None
    assert restarting.message == (
        "job-worker-0 exited with code 42 (TensorFlow asks to be started again, after saving a"
        " checkpoint); all replicas run again (a disruption). Nothing to do: the program resumes"
        " from its checkpoint."
    )


def test_packages_that_cannot_be_downloaded_are_tried_again_and_cost_no_restart() -> None:
    world = builders.running(trainer=True, worker=1, run_policy={"backoffLimit": 0})
    for attempt in (2, 3):
        failing(world, 73, "packages cannot be downloaded")
        assert world.status.attempt == attempt
        assert builders.truth(world, names.ConditionType.RESTARTING) == ("True", "SourceFailed")
        world.run_until_quiet()
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 2)
    assert world.status.restart_causes == {"Infrastructure": 2}


def test_requirements_that_cannot_be_met_fail_the_job_and_say_why() -> None:
    world = builders.running(trainer=True, worker=1)
    failing(world, 78, "requirements.txt: no such package")
    failed = world.condition(names.ConditionType.FAILED)
    assert failed.reason == "SourceFailed"
    assert failed.message == (
        "job-worker-0: init container tfparallel-source exited with code 78 (the configuration"
        " cannot work as given): requirements.txt: no such package"
    )


def failing(world: builders.World, code: int, message: str) -> None:
    """End the pod by its init container, and decide on that."""
    world.exit("job-worker-0", code, message)
    how = world.pods["job-worker-0"].exit
    assert how is not None
    world.update("job-worker-0", exit=dataclasses.replace(how, of_source=True))
    world.step()
