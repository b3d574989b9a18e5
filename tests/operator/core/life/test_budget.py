"""What counts against backoffLimit, whatever happens beside it."""

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import observation
from tfparallel_operator.core.status import conditions


def test_limit_two_means_three_runs() -> None:
    world = builders.a_world(worker=1, run_policy={"backoffLimit": 2})
    runs = 0
    while not conditions.finished(world.status):
        runs += 1
        world.exit("job-worker-0", 1).run_until_quiet()
    assert runs == 3
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")


def test_disruptions_do_not_count_against_the_limit() -> None:
    world = builders.a_world(worker=2, run_policy={"backoffLimit": 0})
    for attempt in range(2, 6):
        world.run().run_until_quiet()
        del world.pods["job-worker-1"]
        world.run_until_quiet()
        assert world.status.attempt == attempt
    assert world.status.restarts.disruption == 4
    assert world.status.restarts.failure == 0


def test_an_evaluator_never_fails_training() -> None:
    world = builders.a_world(chief=1, worker=1, evaluator=1, run_policy={"backoffLimit": 1})
    for _ in range(4):
        world.run().run_until_quiet()
        if world.pods["job-evaluator-0"].phase is observation.Phase.RUNNING:
            world.exit("job-evaluator-0", 1)
        world.run_until_quiet()
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.replicas["Evaluator"].failed == 1
    world.exit("job-worker-0", 1).run_until_quiet()
    assert world.status.attempt == 2, "the evaluator has not used up the budget of training"
    assert world.status.restarts.failure == 1


def test_failures_at_the_same_time_are_counted_one_by_one() -> None:
    world = builders.running(chief=1, worker=2, ps=1, run_policy={"backoffLimit": 1})
    world.exit("job-worker-0", 1)
    world.exit("job-worker-1", 1).run_until_quiet()
    assert world.status.restarts.failure == 1
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")


def test_a_restart_becomes_a_disruption_when_a_node_turns_out_to_be_lost() -> None:
    world = builders.running(chief=1, worker=1, run_policy={"backoffLimit": 1})
    world.exit("job-chief-0", 1)
    world.step()
    assert world.status.restart_causes == {"RetryableExit": 1}
    world.update("job-worker-0", disrupted=True)
    world.step()
    world.run_until_quiet()
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Disruption": 1}
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)


def test_a_worker_of_a_dead_node_still_excuses_its_peers() -> None:
    world = builders.running(worker=2)
    world.exit("job-worker-1", 1)
    world.advance(20)
    world.step()
    world.update("job-worker-0", disrupted=True)
    world.step()
    restarts = world.status.restarts
    assert (restarts.failure, restarts.disruption) == (0, 1)


def test_an_evicted_evaluator_excuses_no_failure_of_a_worker() -> None:
    world = builders.running(worker=2, evaluator=1, run_policy={"backoffLimit": 1})
    failures = 0
    while world.status.state != names.State.FAILED:
        assert failures < 3
        world.exit("job-worker-1", 1)
        failures += 1
        world.advance(20)
        world.step()
        if "job-evaluator-0" in world.pods:
            world.update("job-evaluator-0", disrupted=True)
        world.step()
        world.run_until_quiet()
        world.advance(400).run_until_quiet()
        world.run().run_until_quiet()
    assert failures == 2
    assert world.status.restarts.failure == 1


def test_a_pod_drained_after_scaling_excuses_no_older_failure() -> None:
    world = builders.running(worker=2, elastic=True)
    world.exit("job-worker-1", 1).run_until_quiet()
    world.run().run_until_quiet()
    assert (world.status.restarts.failure, world.status.attempt) == (1, 2)
    world.scale(3)
    world.advance(100)
    world.step()
    assert world.status.attempt == 3
    world.update("job-worker-0", disrupted=True)
    world.step()
    restarts = world.status.restarts
    assert (restarts.failure, restarts.disruption) == (1, 0)


def test_a_job_that_is_suspended_after_its_success_has_succeeded() -> None:
    world = builders.running(chief=1, worker=1)
    world.exit("job-chief-0", 0)
    world.edit(suspend=True).run_until_quiet()
    assert world.status.state is names.State.SUCCEEDED
    assert world.pods["job-chief-0"].phase is observation.Phase.SUCCEEDED


def test_a_refused_pod_takes_no_success_back() -> None:
    world = builders.running(chief=1, worker=1)
    world.exit("job-chief-0", 0)
    refusal = observation.Refusal(names.Reason.INVALID_TEMPLATE, "the worker's is wrong")
    world.step(refusal=refusal)
    assert world.status.state is names.State.SUCCEEDED
