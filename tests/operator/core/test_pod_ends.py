"""Each way in which a pod can end: what Kubernetes writes, and what a job makes of it."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders
from testing.operator import ends as examples
from tfparallel_operator.api import load, names, policies
from tfparallel_operator.core import observation, pod_end_signs, pod_ends, remedies
from tfparallel_operator.core.status import conditions
from tfparallel_operator.engine.observe import records

CASES = [
    pytest.param(end, status, id=f"{end.name}-{number}")
    for end in pod_ends.TABLE
    for number, status in enumerate(examples.EXAMPLES[end.name])
]
PAID = (policies.Cause.OUT_OF_MEMORY, policies.Cause.STALL, None)
"""Causes of rows that count against backoffLimit."""


def see(end: pod_end_signs.End, status: dict[str, Any]) -> observation.Pod:
    pod = records.pod(examples.pod(end.name, status))
    assert pod is not None
    return pod


def lose(end: pod_end_signs.End, status: dict[str, Any], **job: Any) -> builders.World:
    """Return a job of one worker, whose pod has ended in the way of a row."""
    world = builders.running(**{"worker": 1, **job})
    pod = see(end, status)
    changes = {
        field: getattr(pod, field)
        for field in ("phase", "exit", "disrupted", "deleting", "reason", "message")
    }
    world.update("job-worker-0", **changes)
    return world


def message(world: builders.World) -> str:
    condition = conditions.find_true(world.status, names.ConditionType.RESTARTING)
    condition = condition or conditions.find_true(world.status, names.ConditionType.FAILED)
    assert condition is not None
    return condition.message


def test_every_row_has_a_name_of_its_own_and_an_example() -> None:
    rows = [end.name for end in pod_ends.TABLE]
    assert len(rows) == len({*rows})
    assert {*rows} == {*examples.EXAMPLES}
    assert {*remedies.BY_END} <= {*rows}


@pytest.mark.parametrize(("end", "status"), CASES)
def test_a_status_is_of_its_row(end: pod_end_signs.End, status: dict[str, Any]) -> None:
    assert pod_ends.find(see(end, status)) is end


ENDED = [case for case in CASES if see(*case.values).phase.ended]  # type: ignore[arg-type]


@pytest.mark.parametrize(("end", "status"), ENDED)
def test_what_a_row_counts_is_counted(end: pod_end_signs.End, status: dict[str, Any]) -> None:
    world = lose(end, status, run_policy={"backoffLimit": 1})
    world.run_until_quiet()
    if end is pod_ends.VERIFICATION_FAILED:
        assert world.status.attempt == 1
        failed = conditions.find_true(world.status, names.ConditionType.FAILED)
        assert failed is not None
        assert failed.reason == names.Reason.VERIFICATION_FAILED
        return
    assert world.status.attempt == 2
    paid = end.cause in PAID
    restarts = world.status.restarts
    assert (restarts.failure, restarts.disruption) == ((1, 0) if paid else (0, 1))
    if end.cause is not None:
        assert world.status.restart_causes == {end.cause.value: 1}


@pytest.mark.parametrize(("end", "status"), ENDED)
def test_a_pod_that_ends_so_each_time_is_bounded_or_paced(
    end: pod_end_signs.End, status: dict[str, Any]
) -> None:
    world = lose(end, status, run_policy={"backoffLimit": 2})
    began, runs = world.now, 0
    while (world.now - began).total_seconds() < 600 and not conditions.finished(world.status):
        runs += 1
        assert runs < 12
        world.run_until_quiet()
        if "job-worker-0" in world.pods:
            pod = see(end, status)
            old = world.pods["job-worker-0"]
            again = dataclasses.replace(pod, uid=old.uid, attempt=old.attempt, name=old.name)
            world.pods["job-worker-0"] = again
    final = end is pod_ends.VERIFICATION_FAILED
    assert conditions.finished(world.status) == (final or end.cause in PAID)
    if not end.asks:
        assert world.status.restarts.failure == (2 if end.cause in PAID else 0)


@pytest.mark.parametrize(("end", "status"), ENDED)
def test_the_condition_has_the_words_of_who_ended_the_pod_and_a_remedy(
    end: pod_end_signs.End, status: dict[str, Any]
) -> None:
    world = lose(end, status)
    world.step()
    written = message(world)
    assert written.startswith("job-worker-0")
    if end.phrase:
        assert f"job-worker-0 {end.phrase}" in written
        assert "ended by signal 9" not in written or end.deleting
    if end.of_pod:
        reason, sentence = pod_end_signs.words(see(end, status))
        assert reason in written
        assert sentence.strip().rstrip(".") in written
    remedy = remedies.BY_END.get(end.name, "")
    assert written.endswith(remedy)
    written_remedy = "" if world.status.failure is None else world.status.failure.remedy
    assert written_remedy.endswith(remedy)
    assert remedies.OUT_OF_MEMORY not in written or not end.of_pod


@pytest.mark.parametrize(
    ("end", "status"),
    [case for case in ENDED if case.values[0].of_pod],  # type: ignore[union-attr]
)
def test_a_program_that_obeys_with_0_has_not_finished(
    end: pod_end_signs.End, status: dict[str, Any]
) -> None:
    obeyed = {**status, **examples.exited(0, "Completed")}
    world = lose(end, obeyed, run_policy={"backoffLimit": 0})
    world.run_until_quiet()
    assert world.status.state != names.State.SUCCEEDED


def test_the_shipped_trainer_says_with_0_that_training_is_complete() -> None:
    end = next(end for end in pod_ends.TABLE if end.name == "node-shutdown")
    obeyed = examples.EXAMPLES[end.name][1]
    world = lose(end, obeyed, trainer=True)
    world.run_until_quiet()
    assert world.status.state is names.State.SUCCEEDED


def test_a_worker_that_has_completed_may_be_taken_afterwards() -> None:
    world = builders.running(chief=1, worker=2)
    world.exit("job-worker-1", 0).run_until_quiet()
    assert world.status.replicas["Worker"].completed == "1"
    world.update("job-worker-1", disrupted=True, reason="PreemptionByScheduler").run_until_quiet()
    assert world.status.attempt == 1


@pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure"])
@pytest.mark.parametrize("name", ["pod-disk-limit", "empty-dir-limit", "pod-deadline"])
def test_own_limits_follow_the_roles_restart_policy(name: str, policy: str) -> None:
    end = next(end for end in pod_ends.TABLE if end.name == name)
    document = builders.manifest(worker=1)
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    world = builders.World(load.parse_job(document))
    world.run_until_quiet()
    pod = see(end, examples.EXAMPLES[name][-1])
    world.update(
        "job-worker-0", phase=pod.phase, exit=pod.exit, reason=pod.reason, message=pod.message
    )
    world.run_until_quiet()
    world.advance(20).run_until_quiet()
    assert conditions.finished(world.status) == (policy == "Never")
    assert pod.message.strip().rstrip(".") in message(world)


def test_memory_of_the_trainer_does_not_grow_for_an_init_container() -> None:
    end = next(end for end in pod_ends.TABLE if end.name == "out-of-memory")
    grow = {"outOfMemory": {"growthPercent": 50, "maxMemory": "4Gi"}}
    for status, growths in zip(examples.EXAMPLES[end.name], (1, 0), strict=True):
        world = lose(end, status, run_policy=grow)
        world.run_until_quiet()
        assert world.status.replicas["Worker"].memory_growths == growths
