"""What counts against backoffLimit, whatever happens beside it."""

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import observation


def running(**job: object) -> builders.World:
    world = builders.a_world(**job)
    world.run()
    world.settle()
    return world


def test_an_evicted_evaluator_excuses_no_failure_of_a_worker() -> None:
    world = running(worker=2, evaluator=1, run_policy={"backoffLimit": 1})
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
        world.settle()
        world.advance(400)
        world.settle()
        world.run()
        world.settle()
    assert failures == 2
    assert world.status.restarts.failure == 1


def test_a_pod_drained_after_scaling_excuses_no_older_failure() -> None:
    world = running(worker=2, elastic=True)
    world.exit("job-worker-1", 1)
    world.settle()
    world.run()
    world.settle()
    assert (world.status.restarts.failure, world.status.attempt) == (1, 2)
    world.scale(3)
    world.advance(100)
    world.step()
    assert world.status.attempt == 3
    world.update("job-worker-0", disrupted=True)
    world.step()
    restarts = world.status.restarts
    assert (restarts.failure, restarts.disruption) == (1, 0)


def test_a_worker_of_a_dead_node_still_excuses_its_peers() -> None:
    world = running(worker=2)
    world.exit("job-worker-1", 1)
    world.advance(20)
    world.step()
    world.update("job-worker-0", disrupted=True)
    world.step()
    restarts = world.status.restarts
    assert (restarts.failure, restarts.disruption) == (0, 1)


def test_a_job_that_is_suspended_after_its_success_has_succeeded() -> None:
    world = running(chief=1, worker=1)
    world.exit("job-chief-0", 0)
    world.edit(suspend=True)
    world.settle()
    assert world.status.state is names.State.SUCCEEDED
    assert world.pods["job-chief-0"].phase is observation.Phase.SUCCEEDED


def test_a_refused_pod_takes_no_success_back() -> None:
    world = running(chief=1, worker=1)
    world.exit("job-chief-0", 0)
    refusal = observation.Refusal(names.Reason.INVALID_TEMPLATE, "the worker's is wrong")
    world.step(refusal=refusal)
    assert world.status.state is names.State.SUCCEEDED


def test_a_worker_that_comes_back_is_not_passed_over_for_an_older_loss() -> None:
    rules = [{"roles": ["Worker"], "action": "Ignore"}]
    world = running(
        chief=1,
        ps=1,
        worker=3,
        elastic=True,
        run_policy={"failurePolicy": {"rules": rules}, "scaleCooldownSeconds": 0},
    )
    world.exit("job-worker-2", 1)
    world.settle()
    assert world.status.replicas["Worker"].ignored == "2"
    for count in (2, 3):
        world.scale(count)
        world.settle()
        world.run()
        world.settle()
    assert world.status.replicas["Worker"].ignored == ""
    assert world.pods["job-worker-2"].phase is observation.Phase.RUNNING


def test_a_vanished_evaluator_waits_while_another_loss_settles() -> None:
    world = running(worker=2, evaluator=1)
    world.exit("job-worker-1", 75)
    del world.pods["job-evaluator-0"]
    before = list(world.created)
    world.step()
    world.step()
    assert world.created == before
    world.advance(20)
    world.settle()
    attempts = [attempt for name, attempt, _ in world.created if name == "job-evaluator-0"]
    assert attempts == [1, 2]
