"""What the rules of runPolicy.failurePolicy lead to."""

from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names
from tfparallel_operator.core import observation
from tfparallel_operator.core.status import conditions


def rules(*entries: dict[str, Any], **policy: Any) -> dict[str, Any]:
    return {"failurePolicy": {"rules": list(entries)}, **policy}


def reason(world: builders.World) -> str:
    """Return why the job has failed; empty: it has not."""
    failed = conditions.find(world.status, names.ConditionType.FAILED)
    return "" if failed is None else failed.reason


@pytest.mark.parametrize("code", [3, 65])
def test_the_first_rule_that_matches_decides(code: int) -> None:
    policy = rules(
        {"roles": ["PS"], "action": "FailJob"},
        {"exitCodes": [3, 65], "action": "RestartGang"},
        {"action": "FailJob"},
    )
    world = builders.running(trainer=True, worker=2, run_policy=policy)
    world.exit("job-worker-1", code).run_until_quiet()
    assert world.status.attempt == 2
    world.run()
    world.exit("job-worker-1", 4)
    world.advance(10).run_until_quiet()
    assert reason(world) == names.Reason.FAILURE_POLICY


def test_a_rule_may_fail_the_job_for_a_disruption() -> None:
    world = builders.running(
        worker=2, run_policy=rules({"causes": ["Disruption"], "action": "FailJob"})
    )
    del world.pods["job-worker-1"]
    world.run_until_quiet()
    assert reason(world) == names.Reason.FAILURE_POLICY


def test_a_rule_may_restart_one_replica_of_a_gang() -> None:
    policy = rules({"exitCodes": [3], "action": "RestartReplica"})
    world = builders.running(chief=1, worker=2, run_policy=policy)
    world.exit("job-worker-1", 3).run_until_quiet()
    assert (world.status.attempt, world.status.replica_attempts) == (1, {"worker-1": 1})
    world.exit("job-worker-0", 1).run_until_quiet()
    assert world.status.attempt == 2


def test_a_rule_may_restart_the_gang_of_parameter_servers() -> None:
    world = builders.running(chief=1, worker=2, ps=1, run_policy=rules({"action": "RestartGang"}))
    world.exit("job-worker-1", 1).run_until_quiet()
    assert world.status.attempt == 2
    assert {pod.attempt for pod in world.pods.values()} == {2}


def test_restarts_by_a_rule_are_bounded() -> None:
    policy = rules({"exitCodes": [65], "action": "RestartGang"}, backoffLimit=1)
    world = builders.running(worker=1, run_policy=policy)
    for _ in range(2):
        world.exit("job-worker-0", 65).run_until_quiet()
    assert reason(world) == names.Reason.BACKOFF_LIMIT_EXCEEDED


def test_an_ignored_worker_is_not_run_again_also_when_its_pod_is_removed() -> None:
    policy = rules({"roles": ["Worker"], "exitCodes": [3], "action": "Ignore"}, backoffLimit=0)
    world = builders.running(chief=1, worker=2, run_policy=policy)
    world.exit("job-worker-1", 3).run_until_quiet()
    assert world.status.state is names.State.RUNNING
    assert world.status.replicas["Worker"].ignored == "1"
    del world.pods["job-worker-1"]
    world.run_until_quiet()
    assert world.status.attempt == 1
    assert "job-worker-1" not in world.pods
    assert world.status.replicas["Worker"].failed == 1
    events = [event for event in world.events if "continues without it" in event.message]
    assert len(events) == 1


def test_a_worker_that_comes_back_is_not_passed_over_for_an_older_loss() -> None:
    rules = [{"roles": ["Worker"], "action": "Ignore"}]
    world = builders.running(
        chief=1,
        ps=1,
        worker=3,
        elastic=True,
        run_policy={"failurePolicy": {"rules": rules}, "scaleCooldownSeconds": 0},
    )
    world.exit("job-worker-2", 1).run_until_quiet()
    assert world.status.replicas["Worker"].ignored == "2"
    for count in (2, 3):
        world.scale(count).run_until_quiet()
        world.run().run_until_quiet()
    assert world.status.replicas["Worker"].ignored == ""
    assert world.pods["job-worker-2"].phase is observation.Phase.RUNNING


def test_of_all_workers_the_last_one_cannot_be_ignored() -> None:
    policy = rules({"roles": ["Worker"], "action": "Ignore"})
    spec = {"successPolicy": "AllWorkers"}
    world = builders.running(worker=2, run_policy=policy, spec=spec)
    world.exit("job-worker-0", 1).run_until_quiet()
    assert world.status.replicas["Worker"].ignored == "0"
    world.exit("job-worker-1", 1).run_until_quiet()
    world.advance(10).run_until_quiet()
    assert reason(world) == names.Reason.FAILURE_POLICY


def test_the_workers_that_are_left_succeed_for_all() -> None:
    policy = rules({"roles": ["Worker"], "action": "Ignore"})
    world = builders.running(worker=2, run_policy=policy, spec={"successPolicy": "AllWorkers"})
    world.exit("job-worker-0", 1).run_until_quiet()
    world.exit("job-worker-1", 0).run_until_quiet()
    assert world.status.state is names.State.SUCCEEDED


def test_a_rule_that_fails_the_job_for_its_evaluator_lets_training_go_on() -> None:
    world = builders.running(worker=1, evaluator=1, run_policy=rules({"action": "FailJob"}))
    world.exit("job-evaluator-0", 1).run_until_quiet()
    assert world.status.state is names.State.RUNNING
    assert world.status.replicas["Evaluator"].ignored == "0"


@pytest.mark.parametrize("roles", [[], ["PS"], ["Worker", "Chief"]])
def test_what_training_needs_cannot_be_ignored(roles: list[str]) -> None:
    policy = rules({"roles": roles, "action": "Ignore"})
    with pytest.raises(load.SpecError, match="cannot go on without its chief or a server"):
        builders.a_job(chief=1, worker=1, run_policy=policy)
