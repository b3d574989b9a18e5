"""The status tells why a job restarts, fails or waits as fields; messages follow from them."""

from typing import Any

import pytest

from testing.operator import builders, symptoms
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import observation, remedies
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits


def lose(code: int, message: str = "", **job: object) -> builders.World:
    """Return a job whose worker has ended with an exit code."""
    world = builders.running(worker=2, **job)
    world.exit("job-worker-1", code, message)
    world.step()
    return world


def test_a_restart_has_its_loss_until_all_replicas_run_again() -> None:
    world = lose(137)
    assert world.status.failure == job_status.Failure(
        replica="job-worker-1",
        cause="RetryableExit",
        exit_code=137,
        remedy=remedies.BY_EXIT_CODE[137],
    )
    world.run_until_quiet()
    assert world.status.failure is not None
    world.run().run_until_quiet()
    assert world.status.failure is None


@pytest.mark.parametrize(
    ("code", "servers", "action"),
    [
        (137, {}, names.EventAction.RESTART_ALL),
        (137, {"ps": 1}, names.EventAction.RESTART_REPLICA),
        (65, {}, names.EventAction.RECONCILE),
    ],
)
def test_an_event_of_a_loss_names_the_pod_and_what_runs_again(
    code: int, servers: dict[str, Any], action: names.EventAction
) -> None:
    event = next(event for event in lose(code, **servers).events if event.pod)
    assert (event.pod, event.action) == ("job-worker-1", action)


def test_the_remedy_of_the_code_is_there_though_the_replica_said_one_itself() -> None:
    code = exits.Exit.NON_FINITE
    world = lose(code, "model.py has no build_model: write one")
    failed = conditions.find_true(world.status, names.ConditionType.FAILED)
    assert failed is not None
    assert world.status.failure is not None
    assert world.status.failure.remedy == remedies.BY_EXIT_CODE[code]


def test_a_pod_that_never_ran_has_no_exit_code() -> None:
    world = lose(-1)
    assert world.status.failure is not None
    assert world.status.failure.exit_code is None
    written = world.status.failure.model_dump(by_alias=True, exclude_none=True)
    assert "exitCode" not in written


@pytest.mark.parametrize("end", ["deadline", "suspended", "succeeded"])
def test_what_no_loss_ended_has_no_failure(end: str) -> None:
    world = lose(137, run_policy={"activeDeadlineSeconds": 60})
    if end == "deadline":
        world.advance(61)
    elif end == "suspended":
        world.edit(suspend=True)
    else:
        world.run_until_quiet()
        world.exit("job-worker-0", 0)
    world.run_until_quiet()
    assert world.status.state in (names.State.FAILED, names.State.SUSPENDED, names.State.SUCCEEDED)
    assert world.status.failure is None


def test_each_role_says_which_pod_waits_and_what_to_do() -> None:
    world = builders.a_world(chief=1, worker=2)
    no_room = "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    world.update("job-worker-1", waiting=no_room).run_until_quiet()
    assert world.status.replicas["Chief"].waiting is None
    worker = world.status.replicas["Worker"]
    assert worker.waiting == job_status.Waiting(
        pod="job-worker-1", reason=no_room, remedy=remedies.find(no_room)
    )
    assert worker.reason == f"job-worker-1: {no_room}"
    world.run().run_until_quiet()
    assert world.status.replicas["Worker"].waiting is None


@pytest.mark.parametrize("symptom", symptoms.SYMPTOMS)
def test_a_message_is_its_problem_and_its_remedy(symptom: str) -> None:
    for condition in symptoms.SYMPTOMS[symptom]().status.conditions:
        if condition.remedy:
            assert condition.message == f"{condition.problem} {condition.remedy}"
        else:
            assert condition.problem is None


def test_words_of_others_leave_the_fields_bounded() -> None:
    world = builders.a_world(worker=1)
    refused_claim = f'persistentvolumeclaim "{"é" * 5_000}" not found'
    world.update("job-worker-0", waiting=refused_claim).run_until_quiet()
    wait = world.status.replicas["Worker"].waiting
    assert wait is not None and wait.remedy
    assert len(wait.reason.encode()) <= conditions.PROBLEM_BYTES
    assert len(wait.remedy.encode()) <= conditions.REMEDY_BYTES
    refusal = observation.Refusal(
        names.Reason.QUOTA_EXCEEDED, f"exceeded quota: {refused_claim}", False
    )
    world = builders.World(builders.a_job(worker=1))
    world.step(refusal=refusal)
    [refused] = [
        condition for condition in world.status.conditions if condition.type == "CreationRefused"
    ]
    assert refused.problem and refused.remedy
    assert len(refused.problem.encode()) <= conditions.PROBLEM_BYTES
    assert len(refused.remedy.encode()) <= conditions.REMEDY_BYTES
