"""How a job begins: its pods come first, and what happens before a status says so harms nothing."""

import dataclasses

import pytest

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import decide, observation

ALL_PODS = {"job-chief-0", "job-worker-0", "job-worker-1"}


def started(**job: object) -> builders.World:
    """A new job whose operator has died before it wrote a status."""
    world = builders.World(builders.a_job(chief=1, worker=2, **job))  # type: ignore[arg-type]
    world.step()
    assert world.pods.keys() == ALL_PODS
    assert not world.status.attempt
    return world


def test_the_decision_after_the_pods_has_the_status_and_the_event() -> None:
    world = started()
    assert world.events == []
    world.step()
    assert (world.status.attempt, world.status.ready) == (1, "0/3")
    assert [event.reason for event in world.events] == [names.Reason.JOB_STARTED]
    world.run_until_quiet()
    assert len(world.created) == len(ALL_PODS)


@pytest.mark.parametrize("writes", range(1, 7))
def test_an_operator_that_died_between_two_pods_creates_the_others(writes: int) -> None:
    world = builders.World(builders.a_job(chief=1, worker=2))
    world.step(writes=writes)
    world.run_until_quiet()
    assert sorted(world.created) == [(name, 1, 0) for name in sorted(ALL_PODS)]


def test_pods_of_a_spec_that_was_edited_before_the_status_make_way() -> None:
    world = started()
    world.edit(backoff_limit=1).run_until_quiet()
    assert world.status.attempt == 2
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert len(set(world.created)) == len(world.created)
    assert world.status.restarts.failure == world.status.restarts.disruption == 0


def test_pods_whose_config_map_is_gone_before_the_status_make_way() -> None:
    world = started()
    world.config = None
    world.run_until_quiet()
    assert {pod.attempt for pod in world.pods.values()} == {2}


def test_an_edit_that_cannot_be_used_before_the_status_leaves_the_pods_alone() -> None:
    world = started()
    world.problem = observation.SpecProblem("no such strategy", generation=2)
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.run_until_quiet()
    assert {name: pod.uid for name, pod in world.pods.items()} == before
    assert world.status.attempt == 1


def test_pods_whose_spec_is_neither_valid_nor_on_record_are_deleted() -> None:
    world = started()
    invalid = observation.InvalidJob(
        observation.SpecProblem("no such strategy", 2), world.status, None
    )
    for _ in range(2):  # Also if the operator dies between the status and the deletions.
        outcome = decide.decide(
            invalid, world.children(), world.environment(), world.now, world.settings
        )
        assert outcome.status.state is names.State.FAILED
        assert {deletion.name for deletion in outcome.deletions} == ALL_PODS
        invalid = dataclasses.replace(invalid, status=outcome.status)


def test_a_job_that_is_suspended_before_the_status_gives_its_pods_back() -> None:
    world = started()
    world.edit(suspend=True).run_until_quiet()
    assert not world.pods
    assert world.status.state is names.State.SUSPENDED


def test_what_began_before_the_status_counts_as_an_attempt() -> None:
    """Else a pod on a dead node and the one after it would be one to what fences checkpoints."""
    world = started()
    for suspend in (True, False):
        world.edit(suspend=suspend).run_until_quiet()
    assert (world.status.attempt, world.status.restarts.disruption) == (2, 0)
    assert len(set(world.created)) == len(world.created) == 2 * len(ALL_PODS)


def test_a_pod_that_ends_before_the_status_counts() -> None:
    world = started()
    world.run()
    for name in ALL_PODS:
        world.exit(name, 0)
    world.run_until_quiet()
    assert world.status.state is names.State.SUCCEEDED


def test_ports_of_nodes_are_on_record_before_pods_use_them() -> None:
    spec = {"hostNetwork": True, "network": "Open"}
    world = builders.World(builders.a_job(worker=2, spec=spec), host_port=30_000)
    world.step(writes=1)
    assert world.status.host_ports is not None
    assert not world.pods


def test_a_job_that_was_suspended_at_first_is_resumed_on_record() -> None:
    world = builders.World(builders.a_job(worker=2, run_policy={"suspend": True}))
    world.run_until_quiet()
    world.edit(suspend=False)
    world.step(writes=1)
    assert (world.status.attempt, world.pods) == (1, {})


def test_while_no_pod_may_be_created_a_status_says_why() -> None:
    world = builders.World(builders.a_job(worker=2))
    refusal = observation.Refusal(names.Reason.QUOTA_EXCEEDED, "quota", final=False)
    outcome = dataclasses.replace(world.decide(refusal), creations=())
    assert not outcome.creates_first
    assert outcome.status.conditions
