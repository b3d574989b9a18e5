"""The life of a job, one decision after the other."""

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import decide, decision, observation
from tfparallel_operator.core.status import conditions


def test_the_first_decision_writes_the_attempt_ahead_and_creates_all_children() -> None:
    world = builders.World(builders.a_job(chief=1, worker=2))
    outcome = world.decide()
    assert outcome.status.attempt == 1
    assert outcome.status.start_time == builders.START
    assert outcome.status.state is names.State.PENDING
    kinds = [(created["kind"], created["metadata"]["name"]) for created in outcome.creations]
    assert kinds == [
        ("Service", "job"),
        ("ConfigMap", "job-tfparallel"),
        ("NetworkPolicy", "job-tfparallel"),
        ("Pod", "job-chief-0"),
        ("Pod", "job-worker-0"),
        ("Pod", "job-worker-1"),
    ]


def test_a_job_runs_when_all_its_replicas_do_and_succeeds_with_its_chief() -> None:
    world = builders.a_world(chief=1, worker=2)
    world.run("job-chief-0", "job-worker-0").run_until_quiet()
    assert (world.status.state, world.status.ready) == (names.State.PENDING, "2/3")
    world.run("job-worker-1").run_until_quiet()
    assert (world.status.state, world.status.ready) == (names.State.RUNNING, "3/3")
    world.advance(60)
    world.exit("job-chief-0", 0).run_until_quiet()
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert builders.truth(world, names.ConditionType.SUCCEEDED) == ("True", "ChiefSucceeded")
    assert builders.truth(world, names.ConditionType.RUNNING) == ("False", "JobFinished")
    assert world.status.completion_time == world.now
    assert set(world.pods) == {"job-chief-0"}, "pods that still ran are stopped, its log is kept"
    assert world.status.replicas["Worker"].running == 0
    assert world.status.replicas["Worker"].succeeded == 0


@pytest.mark.parametrize(
    ("spec", "codes", "state"),
    [
        ({}, {"job-worker-0": 0}, names.State.SUCCEEDED),
        ({}, {"job-worker-1": 0}, names.State.RUNNING),
        ({"successPolicy": "AllWorkers"}, {"job-worker-0": 0}, names.State.RUNNING),
        (
            {"successPolicy": "AllWorkers"},
            {"job-worker-0": 0, "job-worker-1": 0},
            names.State.SUCCEEDED,
        ),
    ],
)
def test_without_a_chief_the_success_policy_decides(
    spec: dict[str, object], codes: dict[str, int], state: names.State
) -> None:
    world = builders.running(worker=2, spec=spec)
    for name, code in codes.items():
        world.exit(name, code)
    world.run_until_quiet()
    assert world.status.state is state


def test_a_completed_worker_stays_completed_when_its_pod_vanishes() -> None:
    world = builders.a_world(worker=3, spec={"successPolicy": "AllWorkers"})
    world.run()
    world.exit("job-worker-1", 0).run_until_quiet()
    del world.pods["job-worker-1"]
    world.run_until_quiet()
    assert "job-worker-1" not in world.pods
    assert world.status.replicas["Worker"].completed == "1"
    assert world.status.restarts.disruption == 0


def test_servers_end_with_the_job() -> None:
    world = builders.a_world(chief=1, worker=1, ps=2)
    world.run()
    world.exit("job-chief-0", 0).run_until_quiet()
    assert set(world.pods) == {"job-chief-0"}
    assert world.status.replicas["PS"].succeeded == 0


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        ("None", {"job-chief-0", "job-worker-0"}),
        ("Running", {"job-chief-0"}),
        ("All", set()),
    ],
)
def test_the_clean_pod_policy_says_which_pods_are_left(policy: str, left: set[str]) -> None:
    world = builders.a_world(chief=1, worker=1, run_policy={"cleanPodPolicy": policy})
    world.run()
    world.exit("job-chief-0", 0)
    world.step()
    assert conditions.finished(world.status)
    assert not any(pod.deleting for pod in world.pods.values()), "the end is written first"
    world.run_until_quiet()
    assert set(world.pods) == left


def test_the_deadline_fires_on_a_quiet_job() -> None:
    world = builders.running(worker=1, run_policy={"activeDeadlineSeconds": 60})
    wake_at = world.decide().wake_at
    assert wake_at is not None
    world.now = wake_at
    world.run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "DeadlineExceeded")


def test_the_job_is_deleted_when_its_time_to_live_is_over() -> None:
    world = builders.a_world(worker=1, run_policy={"ttlSecondsAfterFinished": 30})
    world.exit("job-worker-0", 0).run_until_quiet()
    assert not world.deleted
    world.advance(30).run_until_quiet()
    assert world.deleted


def test_suspending_deletes_the_pods_and_resuming_begins_a_new_attempt() -> None:
    world = builders.running(worker=2)
    world.edit(suspend=True).run_until_quiet()
    assert world.pods == {}
    assert builders.state_of(world) is names.State.SUSPENDED
    world.advance(3600)
    world.edit(suspend=False).run_until_quiet()
    assert builders.state_of(world) is names.State.PENDING
    assert world.status.start_time == world.now
    assert {pod.attempt for pod in world.pods.values()} == {2}


def test_a_job_may_be_created_suspended() -> None:
    world = builders.a_world(worker=1, run_policy={"suspend": True})
    assert world.pods == {}
    assert builders.state_of(world) is names.State.SUSPENDED
    assert world.status.attempt == 0


def test_a_refused_template_is_a_condition_until_the_spec_changes() -> None:
    world = builders.World(builders.a_job(worker=1))
    world.write_first_status()
    refusal = observation.Refusal(names.Reason.INVALID_TEMPLATE, "spec.containers: Required")
    world.step(refusal=refusal)
    world.run_until_quiet()
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "InvalidTemplate")
    world.edit(backoff_limit=1).run_until_quiet()
    assert builders.state_of(world) is names.State.PENDING
    assert world.status.attempt == 2


def test_a_template_that_was_accepted_before_is_tried_again() -> None:
    world = builders.running(chief=1, worker=1)
    world.exit("job-worker-0", 75).run_until_quiet()
    message = "spec.containers[0].resources: Invalid value"
    refusal = observation.Refusal(names.Reason.INVALID_TEMPLATE, message, role="worker")
    world.step(refusal=refusal)
    assert builders.truth(world, names.ConditionType.FAILED) is None
    assert builders.truth(world, names.ConditionType.CREATION_REFUSED) == (
        "True",
        "InvalidTemplate",
    )


def test_a_template_is_final_though_pods_of_another_role_were_accepted() -> None:
    world = builders.World(builders.a_job(chief=1, worker=1))
    world.step(writes=4)
    assert list(world.pods) == ["job-chief-0"]
    world.step(writes=1)
    assert world.status.replicas["Chief"].seen == "0"
    refusal = observation.Refusal(names.Reason.INVALID_TEMPLATE, "no image", role="worker")
    world.step(refusal=refusal)
    assert builders.truth(world, names.ConditionType.FAILED) == ("True", "InvalidTemplate")


def rejected(message: str, generation: int, status: job_status.JobStatus) -> decision.Decision:
    """Decide on a job of which no spec can be used."""
    invalid = observation.InvalidJob(observation.SpecProblem(message, generation), status)
    return decide.decide(
        invalid,
        observation.Children(),
        observation.Environment(),
        builders.START,
        builders.SETTINGS,
    )


def test_an_object_that_is_no_job_is_rejected_with_its_problems() -> None:
    status = load.read_status({"status": {"state": "Sunny"}})
    outcome = rejected("spec: missing", 4, status)
    failed = conditions.find(outcome.status, names.ConditionType.FAILED)
    assert failed is not None
    assert (failed.reason, failed.message, failed.observed_generation) == (
        "InvalidSpec",
        "spec: missing",
        4,
    )


def test_status_says_whether_a_restart_would_resume() -> None:
    world = builders.a_world(trainer=True, worker=1)
    assert builders.truth(world, names.ConditionType.RESUMABLE) == ("False", "NoCheckpoint")
    document = builders.manifest(trainer=True, worker=1)
    for checkpoint, storage in (({"claim": "c"}, "claim c"), ({"uri": "gs://b/c"}, "gs://b/c")):
        document["spec"]["trainer"]["checkpoint"] = checkpoint
        world = builders.World(load.parse_job(document))
        world.run_until_quiet()
        assert builders.truth(world, names.ConditionType.RESUMABLE) == (
            "True",
            "CheckpointConfigured",
        )
        resumable = world.condition(names.ConditionType.RESUMABLE)
        assert resumable.message == f"restarts resume from the checkpoints in {storage}"


def test_why_a_pod_waits_stands_in_the_status() -> None:
    world = builders.a_world(worker=2)
    world.update("job-worker-1", waiting="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    world.run_until_quiet()
    assert world.status.replicas["Worker"].reason.startswith("job-worker-1: 0/1 nodes")
    running = world.condition(names.ConditionType.RUNNING)
    assert "Insufficient nvidia.com/gpu" in running.message


def test_of_a_gang_the_pod_that_holds_up_the_others_says_why() -> None:
    world = builders.a_world(worker=3)
    for index, reason in enumerate(
        (
            "0/1 nodes are available: 1 optimistic rejection in PostFilter.",
            "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
            "0/1 nodes are available: 1 rejection in Unreserve.",
        )
    ):
        world.update(f"job-worker-{index}", waiting=reason)
    world.run_until_quiet()
    assert world.status.replicas["Worker"].reason.startswith("job-worker-1: 0/2 nodes")


def test_a_second_wrong_spec_is_reported_like_the_first() -> None:
    first = rejected("a", 1, job_status.JobStatus())
    assert rejected("b", 1, first.status).status == first.status
    newer = rejected("b", 2, first.status)
    failed = conditions.find(newer.status, names.ConditionType.FAILED)
    assert failed is not None
    assert (failed.message, failed.observed_generation) == ("b", 2)


def test_a_status_of_a_newer_operator_is_read_all_the_same() -> None:
    document = builders.manifest(worker=1)
    document["status"] = {"attempt": 2, "mood": "sunny", "progress": {"step": 3, "mood": "sunny"}}
    status = load.parse_job(document).status
    assert (status.attempt, status.progress and status.progress.step) == (2, 3)
