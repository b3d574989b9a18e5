"""What remains of a job that has ended, and for how long."""

from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import observation
from tfparallel_operator.core.status import conditions


def ended(code: int, **job: Any) -> builders.World:
    world = builders.World(builders.a_job(**job))
    world.run_until_quiet()
    world.run().run_until_quiet()
    world.exit("job-chief-0", code).run_until_quiet()
    assert conditions.finished(world.status)
    return world


STAGES = [
    {"when": "Failed", "afterSeconds": 100, "delete": "Pods"},
    {"when": "Succeeded", "delete": "Pods"},
    {"afterSeconds": 1000, "delete": "Job"},
]


def test_stages_remove_devices_now_logs_later_and_the_job_at_last() -> None:
    policy = {"backoffLimit": 0, "cleanup": STAGES}
    world = ended(65, trainer=True, chief=1, worker=1, run_policy=policy)
    assert set(world.pods) == {"job-chief-0"}
    for seconds in (100, 900):
        wake_at = world.decide().wake_at
        assert wake_at is not None
        assert (wake_at - world.now).total_seconds() == seconds
        world.now = wake_at
        world.run_until_quiet()
        assert world.pods == {}
    assert world.deleted


def test_a_stage_of_another_end_is_left_out() -> None:
    world = ended(0, chief=1, worker=1, run_policy={"cleanup": STAGES})
    assert world.pods == {}


def test_running_pods_may_be_kept_for_a_while() -> None:
    stages = [{"afterSeconds": 50, "delete": "RunningPods"}]
    policy = {"cleanPodPolicy": "None", "cleanup": stages}
    world = ended(0, chief=1, worker=1, run_policy=policy)
    assert set(world.pods) == {"job-chief-0", "job-worker-0"}
    world.advance(50).run_until_quiet()
    assert set(world.pods) == {"job-chief-0"}


def test_a_pod_whose_sidecar_runs_on_is_not_kept_for_its_log() -> None:
    world = builders.World(builders.a_job(chief=1, worker=1))
    world.run_until_quiet()
    world.run().run_until_quiet()
    world.update("job-chief-0", lingers=True)
    world.exit("job-chief-0", 0).run_until_quiet()
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert world.pods == {}


def test_the_evaluator_gets_time_for_its_last_evaluation() -> None:
    world = ended(0, chief=1, ps=1, worker=1, evaluator=1)
    assert set(world.pods) == {"job-chief-0", "job-evaluator-0"}, "servers end with the job"
    assert world.status.state is names.State.SUCCEEDED
    wake_at = world.decide().wake_at
    assert wake_at is not None
    assert (wake_at - world.now).total_seconds() == 300
    world.now = wake_at
    world.run_until_quiet()
    assert set(world.pods) == {"job-chief-0"}


def test_an_evaluator_that_has_ended_is_kept_like_other_pods() -> None:
    world = ended(0, chief=1, evaluator=1)
    world.exit("job-evaluator-0", 0).run_until_quiet()
    assert world.pods["job-evaluator-0"].phase is observation.Phase.SUCCEEDED
    assert world.decide().wake_at is None


@pytest.mark.parametrize(
    ("code", "policy"), [(65, {}), (0, {"evaluatorGraceSeconds": 0})], ids=["failed", "no grace"]
)
def test_no_evaluator_is_waited_for(code: int, policy: dict[str, int]) -> None:
    world = ended(code, trainer=True, chief=1, evaluator=1, run_policy=policy, spec=CHECKPOINT)
    assert set(world.pods) == {"job-chief-0"}


CHECKPOINT = {"trainer": {"epochs": 1, "checkpoint": {"claim": "c"}}}


def test_success_and_failure_exclude_each_other_also_in_one_look() -> None:
    world = builders.World(builders.a_job(chief=1, worker=1, run_policy={"backoffLimit": 0}))
    world.run_until_quiet()
    world.run().run_until_quiet()
    world.exit("job-worker-0", 1)
    world.exit("job-chief-0", 0).run_until_quiet()
    assert world.status.state is names.State.SUCCEEDED
    assert not conditions.is_true(world.status, names.ConditionType.FAILED)
    world.advance(100).run_until_quiet()
    assert not conditions.is_true(world.status, names.ConditionType.FAILED)
