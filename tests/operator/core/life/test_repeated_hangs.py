"""A second hang at the same place ends the job, with the stack."""

from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits, hangs

STACK = "never_comes (model.py:12) < generate (model.py:8)"


def message(after: str, stack: str = STACK) -> str:
    sentence = hangs.describe(hangs.Hang(after, stack), 1800, "trainer.stepTimeoutSeconds")
    return f"{sentence}The stacks of all threads stand above."


def a_world(**run_policy: Any) -> builders.World:
    return builders.running(trainer=True, worker=2, run_policy=run_policy)


def hang(world: builders.World, after: str, replica: str = "worker-0", stack: str = STACK) -> None:
    """Let a replica hang, and let the pauses before its restart or the job's end pass."""
    world.exit(f"job-{replica}", exits.Exit.STALLED, message(after, stack)).run_until_quiet()
    go_on(world)


def go_on(world: builders.World) -> None:
    world.advance(300).run_until_quiet()
    if not conditions.finished(world.status):
        world.run().run_until_quiet()


def test_two_hangs_after_the_same_step_end_the_job_with_the_stack() -> None:
    world = a_world()
    hang(world, "step 7")
    assert world.status.attempt == 2
    assert world.status.hang == job_status.Hang(replica="job-worker-0", after="step 7", stack=STACK)
    other = "quick_execute (execute.py:53) < submit (engine.py:88)"
    hang(world, "step 7", "worker-1", other)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", names.Reason.HUNG_AGAIN)
    sentence = world.condition(names.ConditionType.FAILED).message
    assert f"since step 7: the main thread is in {other}. " in sentence
    assert sentence.endswith("it hung at the same place before")
    assert world.status.hang == job_status.Hang(replica="job-worker-1", after="step 7", stack=other)
    assert world.status.restarts.failure == 1
    assert any(
        event.reason == names.Reason.HUNG_AGAIN and other in event.message for event in world.events
    )


def test_hangs_at_different_places_use_the_budget() -> None:
    world = a_world(backoffLimit=3)
    for after in ("step 7", "step 9", "the call of training_data began"):
        hang(world, after)
    assert world.status.attempt == 4
    hang(world, "step 11")
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")


def test_a_loss_of_another_kind_in_between_does_not_hide_a_second_hang() -> None:
    world = a_world()
    hang(world, "step 7")
    world.exit("job-worker-1", 139).run_until_quiet()
    go_on(world)
    assert world.status.attempt == 3
    hang(world, "step 7")
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", names.Reason.HUNG_AGAIN)


def test_a_rule_goes_before() -> None:
    rules = [{"causes": ["Stall"], "action": "RestartGang"}]
    world = a_world(backoffLimit=5, failurePolicy={"rules": rules})
    for attempt in range(2, 5):
        hang(world, "step 7")
        assert world.status.attempt == attempt


def test_a_job_that_was_suspended_begins_without_its_hang() -> None:
    world = a_world()
    hang(world, "step 7")
    world.edit(suspend=True).run_until_quiet()
    world.edit(suspend=False).run_until_quiet()
    world.run().run_until_quiet()
    assert world.status.hang is None
    attempt = world.status.attempt
    hang(world, "step 7")
    assert world.status.attempt == attempt + 1


@pytest.mark.parametrize("after", ["step 7", "the call of evaluation_data began"])
def test_hangs_of_the_evaluator_restart_it(after: str) -> None:
    world = builders.running(chief=1, worker=1, evaluator=1)
    for times in (1, 2):
        hang(world, after, "evaluator-0")
        assert world.status.replica_attempts == {"evaluator-0": times}
    assert world.status.hang is None


def test_a_hang_without_a_place_uses_the_budget() -> None:
    world = a_world(backoffLimit=2)
    for attempt in (2, 3):
        world.exit("job-worker-0", exits.Exit.STALLED, "a step did not end").run_until_quiet()
        go_on(world)
        assert world.status.attempt == attempt
    assert world.status.hang is None
