"""Deadlines: from times in the status, on quiet jobs, and never for time without an operator."""

import datetime

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import installation, observation
from tfparallel_operator.core.life import dead_nodes
from tfparallel_operator.core.status import conditions


def report(world: builders.World, step: int) -> None:
    """Let a report of the coordinator arrive."""
    latest = job_status.ProgressStatus(step=step, last_update_time=world.now)
    status = world.status.model_copy(update={"progress": latest})
    world.job = world.job.model_copy(update={"status": status})


def wait(world: builders.World) -> None:
    """Let time pass until the decision wants to be asked again, and ask."""
    wake_at = world.decide().wake_at
    assert wake_at is not None, "nobody would look at the job again"
    world.now = wake_at
    world.run_until_quiet()


def test_pods_that_wait_for_too_long_fail_the_job_with_the_schedulers_words() -> None:
    world = builders.World(builders.a_job(worker=2, run_policy={"pendingDeadlineSeconds": 60}))
    world.run_until_quiet()
    world.run("job-worker-0")
    world.update("job-worker-1", waiting="Unschedulable: 0/3 nodes are available").run_until_quiet()
    wait(world)
    assert (world.now - builders.START).total_seconds() == 60
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "PendingDeadlineExceeded")
    failed = world.condition(names.ConditionType.FAILED)
    assert failed.message == (
        "job-worker-1 does not run 60 s after it should (runPolicy.pendingDeadlineSeconds): "
        "Unschedulable: 0/3 nodes are available"
    )
    assert world.pods == {}, "what the others held is free"


def test_the_pod_whose_words_say_most_is_named_when_the_wait_is_over() -> None:
    world = builders.a_world(worker=3, run_policy={"pendingDeadlineSeconds": 60})
    world.update("job-worker-1", waiting="Unschedulable: optimistic rejection in PostFilter")
    world.update("job-worker-2", waiting="Unschedulable: 0/3 nodes are available").run_until_quiet()
    wait(world)
    failed = world.condition(names.ConditionType.FAILED)
    assert failed.message.startswith("job-worker-2 does not run 60 s after it should")


def test_by_a_rule_pods_that_wait_for_too_long_are_recreated() -> None:
    rule = {"causes": ["PendingTooLong"], "action": "RestartGang"}
    policy = {
        "pendingDeadlineSeconds": 60,
        "backoffLimit": 1,
        "failurePolicy": {"rules": [rule]},
    }
    world = builders.World(builders.a_job(worker=2, run_policy=policy))
    world.run_until_quiet()
    wait(world)
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"PendingTooLong": 1}
    assert {pod.attempt for pod in world.pods.values()} == {2}
    wait(world)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")


def test_a_worker_that_waits_for_too_long_may_be_left_out() -> None:
    rule = {"roles": ["Worker"], "causes": ["PendingTooLong"], "action": "Ignore"}
    policy = {"pendingDeadlineSeconds": 60, "failurePolicy": {"rules": [rule]}}
    world = builders.World(builders.a_job(chief=1, worker=2, run_policy=policy))
    world.run_until_quiet()
    world.run("job-chief-0", "job-worker-0").run_until_quiet()
    wait(world)
    assert set(world.pods) == {"job-chief-0", "job-worker-0"}
    assert world.status.replicas["Worker"].ignored == "1"
    assert world.status.state is names.State.RUNNING


def test_a_failure_that_settles_is_no_wait() -> None:
    policy = {"pendingDeadlineSeconds": 60, "backoffLimit": 0}
    world = builders.running(worker=2, run_policy=policy)
    world.advance(59)
    world.exit("job-worker-0", 1).run_until_quiet()
    world.advance(1)
    world.exit("job-worker-1", 0).run_until_quiet()
    assert conditions.find(world.status, names.ConditionType.FAILED) is None
    world.advance(10).run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")


def test_a_job_that_runs_waits_for_nothing() -> None:
    world = builders.running(worker=1, run_policy={"pendingDeadlineSeconds": 60})
    assert world.decide().wake_at is None
    world.advance(3600).run_until_quiet()
    assert world.status.state is names.State.RUNNING


def test_training_goes_on_while_one_of_the_asynchronous_workers_waits() -> None:
    world = builders.World(
        builders.a_job(chief=1, worker=2, ps=1, run_policy={"pendingDeadlineSeconds": 60})
    )
    world.run_until_quiet()
    world.run("job-chief-0", "job-ps-0", "job-worker-0").run_until_quiet()
    world.advance(3600).run_until_quiet()
    assert world.status.state is names.State.RUNNING


def test_asynchronous_training_does_not_run_without_its_server() -> None:
    policy = {"pendingDeadlineSeconds": 60}
    world = builders.World(builders.a_job(chief=1, worker=2, ps=1, run_policy=policy))
    world.run_until_quiet()
    world.run("job-chief-0", "job-worker-0", "job-worker-1").run_until_quiet()
    assert world.status.state is names.State.PENDING
    world.advance(60).run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "PendingDeadlineExceeded")


def test_the_wait_is_counted_from_zero_in_each_attempt() -> None:
    world = builders.running(worker=2, run_policy={"pendingDeadlineSeconds": 60})
    world.advance(3600)
    del world.pods["job-worker-1"]
    world.run_until_quiet()
    wait(world)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "PendingDeadlineExceeded")
    assert (world.now - builders.START).total_seconds() == 3660


def test_training_that_makes_no_progress_is_run_again_within_the_budget() -> None:
    world = builders.running(worker=1, run_policy={"stallDeadlineSeconds": 60, "backoffLimit": 1})
    world.advance(5)
    report(world, 3)
    wait(world)
    assert (world.now - builders.START).total_seconds() == 65
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Stall": 1}
    assert builders.truth(world, names.ConditionType.TRAINING_STALLED) == (
        "True",
        "StallDeadlineExceeded",
    )
    world.run().run_until_quiet()
    assert builders.truth(world, names.ConditionType.TRAINING_STALLED) == (
        "False",
        "ReplicasRunning",
    )
    assert world.decide().wake_at is None, "this attempt has not reported yet"
    world.advance(5)
    report(world, 3)
    wait(world)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "BackoffLimitExceeded")
    assert builders.truth(world, names.ConditionType.TRAINING_STALLED) == ("False", "JobFinished")


def test_a_stall_of_a_replica_that_a_rule_ignores_is_not_ignored() -> None:
    rules = [{"causes": ["Stall"], "roles": ["Worker"], "action": "Ignore"}]
    policy = {"stallDeadlineSeconds": 60, "failurePolicy": {"rules": rules}}
    world = builders.running(worker=2, run_policy=policy, spec={"successPolicy": "AllWorkers"})
    world.advance(5)
    report(world, 3)
    wait(world)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "FailurePolicy")


def test_each_report_moves_the_stall() -> None:
    world = builders.running(worker=1, run_policy={"stallDeadlineSeconds": 60})
    for step in range(1, 5):
        world.advance(50)
        report(world, step)
        world.run_until_quiet()
    assert world.status.attempt == 1


@pytest.mark.parametrize("away", [30, 100_000])
def test_time_without_an_operator_never_turns_into_a_stall(away: int) -> None:
    world = builders.running(worker=1, run_policy={"stallDeadlineSeconds": 60})
    world.advance(5)
    report(world, 3)
    world.advance(away)
    world.settings = installation.InstallationSettings(trainer_image="i", listening_since=world.now)
    outcome = world.decide()
    assert outcome.status.attempt == 1
    assert outcome.wake_at == world.now + datetime.timedelta(seconds=60)
    world.now = outcome.wake_at
    outcome = world.decide()
    assert outcome.status.attempt == 2


def test_a_report_counts_from_its_own_time_where_the_operator_has_listened_for_longer() -> None:
    world = builders.running(worker=1, run_policy={"stallDeadlineSeconds": 60})
    world.settings = installation.InstallationSettings(trainer_image="i", listening_since=world.now)
    world.advance(100)
    report(world, 3)
    assert world.decide().wake_at == world.now + datetime.timedelta(seconds=60)


def test_a_job_that_never_reports_never_stalls() -> None:
    world = builders.running(worker=1, run_policy={"stallDeadlineSeconds": 60})
    assert world.decide().wake_at is None


def test_the_active_deadline_does_not_count_time_in_suspension() -> None:
    world = builders.running(worker=1, run_policy={"activeDeadlineSeconds": 60})
    world.edit(suspend=True).run_until_quiet()
    world.advance(3600).run_until_quiet()
    assert world.status.state is names.State.SUSPENDED
    world.edit(suspend=False).run_until_quiet()
    wait(world)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "DeadlineExceeded")
    assert (world.now - builders.START).total_seconds() == 3660


def test_a_pod_that_its_node_does_not_end_is_deleted_by_force_in_bounded_time() -> None:
    world = builders.running(worker=2)
    world.exit("job-worker-0", 1)
    world.step()
    for pod in list(world.pods.values()):
        grace_ends = world.now + datetime.timedelta(seconds=30)
        world.update(pod.name, deleting=True, delete_by=grace_ends, node="n1")
    del world.pods["job-worker-0"]
    world.step()
    assert list(world.pods) == ["job-worker-1"]
    wake_at = world.decide().wake_at
    assert wake_at == world.now + datetime.timedelta(seconds=30) + dead_nodes.PATIENCE
    world.now = wake_at
    outcome = world.decide()
    [deletion] = outcome.deletions
    assert (deletion.name, deletion.force_from) == ("job-worker-1", "n1")
    assert outcome.wake_at == world.now + dead_nodes.RETRY


@pytest.mark.parametrize("state", ["suspended", "ended"])
def test_a_dead_node_holds_up_no_other_part_of_life_either(state: str) -> None:
    world = builders.running(worker=1)
    if state == "suspended":
        world.edit(suspend=True)
    else:
        world.exit("job-worker-0", 0)
    world.step()
    world.update("job-worker-0", deleting=True, delete_by=world.now)
    world.now += dead_nodes.PATIENCE
    assert [deletion.force_from for deletion in world.decide().deletions] == [""]


def test_a_refusal_for_now_is_reported_once_and_the_job_goes_on() -> None:
    world = builders.World(builders.a_job(worker=2))
    world.step(writes=1)
    message = "exceeded quota: pods, used: pods={}"
    for used in range(3):
        quota = names.Reason.QUOTA_EXCEEDED
        world.step(refusal=observation.Refusal(quota, message.format(used), final=False))
    assert builders.truth(world, names.ConditionType.CREATION_REFUSED) == ("True", "QuotaExceeded")
    assert world.status.state is names.State.PENDING
    events = [event for event in world.events if event.reason == names.Reason.QUOTA_EXCEEDED]
    assert len(events) == 1
    world.run_until_quiet()
    assert builders.truth(world, names.ConditionType.CREATION_REFUSED) == (
        "False",
        "ReplicasCreated",
    )
    running_ = world.condition(names.ConditionType.RUNNING)
    assert "quota" not in running_.message


def test_another_refusal_for_the_same_reason_is_news() -> None:
    world = builders.World(builders.a_job(worker=2))
    world.step(writes=1)
    for message in ("policy a denied request", "policy b denied request"):
        refusal = observation.Refusal(names.Reason.ADMISSION_DENIED, message, final=False)
        world.step(refusal=refusal)
        condition = world.condition(names.ConditionType.CREATION_REFUSED)
        assert message in condition.message
        assert message in world.events[-1].message


def test_a_pending_deadline_says_what_keeps_pods_from_being_created() -> None:
    policy = {"pendingDeadlineSeconds": 60}
    world = builders.World(builders.a_job(worker=1, run_policy=policy))
    world.write_first_status()
    message = 'Internal error occurred: failed calling webhook "pods.example.com": no answer'
    failing = observation.Refusal(
        names.Reason.SERVER_UNAVAILABLE, message, final=False, objects=("pod/job-worker-0",)
    )
    world.step(refusal=failing)
    world.advance(60)
    world.step(writes=1)
    failed = world.condition(names.ConditionType.FAILED)
    assert failed.reason == names.Reason.PENDING_DEADLINE_EXCEEDED
    assert message in failed.message


def test_while_pods_are_refused_the_running_condition_says_why() -> None:
    world = builders.World(builders.a_job(worker=1))
    world.step(writes=1)
    denied = observation.Refusal(names.Reason.ADMISSION_DENIED, "no", final=False)
    world.step(refusal=denied)
    world.step(writes=1)
    condition = world.condition(names.ConditionType.RUNNING)
    assert condition.message.endswith("the API server refuses to create pods, trying again: no")
