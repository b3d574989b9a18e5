"""Restarts that come quickly one after another: whatever the cause, they wait for longer."""

import datetime
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import observation
from tfparallel_operator.core.life import failure, slowness
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits


def report(world: builders.World) -> None:
    world.advance(2)
    latest = job_status.ProgressStatus(step=3, last_update_time=world.now)
    world.job = world.job.model_copy(
        update={"status": world.status.model_copy(update={"progress": latest})}
    )
    world.run_until_quiet()


def fail(world: builders.World) -> None:
    world.exit("job-worker-0", 1)


def delete(world: builders.World) -> None:
    del world.pods["job-worker-0"]


def preempt(world: builders.World) -> None:
    world.update("job-worker-0", disrupted=True, reason="PreemptionByScheduler")
    world.exit("job-worker-0", 143)


def evict(world: builders.World) -> None:
    low = "The node was low on resource: memory. "
    world.update("job-worker-0", disrupted=True, reason="Evicted", message=low)
    world.exit("job-worker-0", 137)


def reboot(world: builders.World) -> None:
    lost = observation.Exit(137, "ContainerStatusUnknown", "", world.now)
    world.update("job-worker-0", phase=observation.Phase.FAILED, exit=lost)


def ask(world: builders.World) -> None:
    world.exit("job-worker-0", exits.TENSORFLOW_RESTART)


def lose(world: builders.World, how: Any = delete) -> float:
    """Lose the worker, and return how many seconds its next attempt waited."""
    how(world)
    before = world.now
    world.run_until_quiet()
    world.run().run_until_quiet()
    return (world.now - before).total_seconds()


@pytest.mark.parametrize("how", [fail, delete, preempt, evict, reboot])
def test_losses_that_come_at_once_wait_for_longer_each_time_up_to_a_bound(how: Any) -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 8 if how is fail else 0})
    assert [lose(world, how) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert world.status.restarts.failure == (8 if how is fail else 0)


@pytest.mark.parametrize("how", [delete, preempt, evict, reboot, ask])
def test_the_first_disruption_after_progress_does_not_wait(how: Any) -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 0})
    for _ in range(3):
        lose(world, how)
    report(world)
    assert [lose(world, how) for _ in range(3)] == [0, 10, 20]


def test_ten_minutes_of_an_attempt_are_progress() -> None:
    world = builders.running(worker=1)
    for _ in range(4):
        lose(world)
    world.now += slowness.LONG_RUN
    assert [lose(world) for _ in range(2)] == [0, 10]


def test_a_restart_after_a_long_run_does_not_pause() -> None:
    world = builders.running(worker=1)
    for _ in range(3):
        world.advance(3600)
        world.exit("job-worker-0", 1)
        before = world.now
        world.run_until_quiet()
        assert world.now == before
        world.run()


def test_no_pod_is_created_while_a_restart_pauses() -> None:
    world = builders.running(worker=1)
    for _ in range(2):
        world.exit("job-worker-0", 1)
        world.step()
        world.reap()
        world.step()
    assert world.pods == {}
    outcome = world.decide()
    assert outcome.wake_at == world.status.attempt_time
    assert outcome.creations == ()
    world.advance(10)
    world.step()
    assert list(world.pods) == ["job-worker-0"]


def test_a_node_that_turns_pods_away_costs_no_budget_and_is_left_in_peace() -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 0})
    for times in range(1, 4):
        away = observation.Exit(-1, "OutOfnvidia.com/gpu", "no device", world.now)
        world.update("job-worker-0", phase=observation.Phase.FAILED, exit=away)
        before = world.now
        world.run_until_quiet()
        assert world.status.restart_causes == {"Infrastructure": times}
        assert (world.now - before).total_seconds() == 10 * 2 ** (times - 1)
    assert world.status.restarts.failure == 0


def test_a_job_that_is_resumed_begins_its_pauses_from_zero() -> None:
    world = builders.running(worker=1)
    for _ in range(4):
        lose(world)
    world.edit(suspend=True).run_until_quiet()
    world.edit(suspend=False).run_until_quiet()
    assert lose(world) == 0


def test_failures_that_turn_out_to_be_disruptions_wait_as_well() -> None:
    world = builders.running(chief=1, worker=1, run_policy={"backoffLimit": 2})
    pauses = []
    for _ in range(5):
        before = world.now
        world.exit("job-chief-0", 1)
        world.step()
        world.update("job-worker-0", disrupted=True, reason="PreemptionByScheduler")
        world.step()
        world.run_until_quiet()
        pauses.append((world.now - before).total_seconds())
        world.run().run_until_quiet()
    assert pauses == [0, 10, 20, 40, 80]
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 5)


def test_a_replica_that_is_lost_during_a_pause_does_not_prolong_it() -> None:
    world = builders.running(chief=1, ps=1, worker=3)
    for _ in range(3):
        lose(world)
    del world.pods["job-worker-0"]
    world.step()
    begins_at = world.status.attempt_time
    assert begins_at == world.now + datetime.timedelta(seconds=40)
    world.advance(30)
    del world.pods["job-worker-1"]
    world.step()
    assert world.status.attempt_time == begins_at
    world.run_until_quiet()
    assert world.now == begins_at
    assert {"job-worker-0", "job-worker-1"} <= {*world.pods}


def test_an_attempt_that_a_wrong_clock_has_set_for_later_begins_at_once() -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 5})
    world.now += datetime.timedelta(hours=1)  # The operator of now has another clock.
    world.exit("job-worker-0", 75)
    world.step()
    world.reap()
    world.now -= datetime.timedelta(hours=1)
    world.step()
    assert [(pod.attempt, pod.deleting) for pod in world.pods.values()] == [(2, False)]


def test_a_program_may_ask_to_run_again_as_often_as_it_makes_progress() -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": 0})
    for times in range(1, 21):
        report(world)
        assert lose(world, ask) == 0
        assert world.status.restart_causes == {"Disruption": times}
    assert world.status.state is names.State.RUNNING


@pytest.mark.parametrize("limit", [0, 2])
@pytest.mark.parametrize("code", exits.ASKED_TO_END)
def test_a_program_that_only_asks_to_run_again_fails_in_the_end(code: int, limit: int) -> None:
    world = builders.running(worker=1, run_policy={"backoffLimit": limit})
    runs = 0
    while not conditions.finished(world.status):
        runs += 1
        lose(world, lambda world: world.exit("job-worker-0", code))
        assert runs < 20
    assert runs == failure.PATIENCE + limit + 1
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")
