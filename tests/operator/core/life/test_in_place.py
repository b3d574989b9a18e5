"""Pods whose agents wait stay for the next attempt, and attempts never overlap."""

import dataclasses
import itertools
from typing import Any

import pytest

from testing.operator import builders
from testing.operator.agent_world import AgentWorld
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import installation, observation
from tfparallel_operator.core.life import in_place
from tfparallel_trainer.contract import agents, environment

RUN, WAIT, EXIT = agents.Instruction.RUN, agents.Instruction.WAIT, agents.Instruction.EXIT


def uids_of(world: AgentWorld) -> dict[str, str]:
    return {name: pod.uid for name, pod in world.pods.items()}


def attempts_of(world: AgentWorld) -> dict[str, int]:
    return {name: pod.attempt for name, pod in world.pods.items()}


def running(spec: dict[str, Any] | None = None, **roles: Any) -> AgentWorld:
    world = AgentWorld(builders.a_job(trainer=True, spec=spec, **roles))
    world.run_until_quiet()
    world.run().run_until_quiet()
    assert builders.state_of(world) is names.State.RUNNING
    return world


def with_servers(workers: int = 2) -> AgentWorld:
    return running({"strategy": "ParameterServer"}, chief=1, worker=workers, ps=1)


def run_of(attempt: int, replica_attempt: int = 0) -> agents.AgentResponse:
    run = agents.Run(attempt=attempt, replica_attempt=replica_attempt)
    return agents.AgentResponse(instruction=RUN, run=run)


def test_pods_stay_whose_trainer_ended() -> None:
    world = running(chief=1, worker=1)
    before = uids_of(world)
    assert world.end("job-worker-0", 137) is WAIT
    world.step()
    assert (world.status.attempt, world.status.pods_since) == (2, None)
    failed = world.status.failure
    assert failed is not None
    assert (failed.replica, failed.exit_code) == ("job-worker-0", 137)
    assert world.ask("job-worker-0").instruction is WAIT, "the chief still trains"
    world.run_until_quiet()
    assert world.status.pods_since is None
    assert world.end("job-chief-0", 75, attempt=1) is WAIT
    world.run_until_quiet()
    assert world.status.pods_since == 1
    assert [world.ask(name) for name in sorted(world.pods)] == [run_of(2)] * 2
    assert uids_of(world) == before
    assert builders.state_of(world) is names.State.RUNNING
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (1, 0)


def test_the_agents_of_a_job_that_has_ended_exit() -> None:
    world = running({"runPolicy": {"cleanPodPolicy": "None"}}, chief=1, worker=1)
    world.exit("job-chief-0", 0).run_until_quiet()
    assert builders.state_of(world) is names.State.SUCCEEDED
    assert world.end("job-worker-0", 75) is EXIT


def test_a_loss_that_ends_the_job_ends_the_pod() -> None:
    world = running({"runPolicy": {"backoffLimit": 0}}, chief=1, worker=1)
    world.end("job-worker-0", 137)
    world.advance(installation.SETTLING.total_seconds()).run_until_quiet()
    assert builders.state_of(world) is names.State.FAILED
    assert (
        "job-worker-0 exited with code 137" in world.condition(names.ConditionType.FAILED).message
    )
    assert world.ask("job-worker-0").instruction is EXIT


def test_only_the_pod_that_is_gone_is_created() -> None:
    world = running(chief=1, worker=2)
    before = uids_of(world)
    del world.pods["job-worker-1"]
    world.run_until_quiet()
    assert world.status.attempt == 2
    assert set(world.pods) == {"job-chief-0", "job-worker-0"}, "attempts do not overlap"
    for name in tuple(world.pods):
        world.end(name, 75, attempt=1)
    world.run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 1, "job-worker-0": 1, "job-worker-1": 2}
    assert uids_of(world) == {**before, "job-worker-1": world.pods["job-worker-1"].uid}
    world.run().run_until_quiet()
    assert builders.state_of(world) is names.State.RUNNING
    assert world.ask("job-chief-0") == run_of(2)


def test_a_pod_whose_agent_says_nothing_is_replaced() -> None:
    world = running(chief=1, worker=1)
    world.end("job-worker-0", 137)
    world.run_until_quiet()
    assert world.decide().wake_at == world.now + in_place.HOLD
    before = uids_of(world)
    world.advance(in_place.HOLD.total_seconds()).run_until_quiet()
    assert uids_of(world)["job-worker-0"] == before["job-worker-0"]
    assert uids_of(world)["job-chief-0"] != before["job-chief-0"]
    assert attempts_of(world) == {"job-chief-0": 2, "job-worker-0": 1}
    assert world.status.pods_since == 1


def test_no_attempt_begins_while_a_pod_of_another_one_is_being_deleted() -> None:
    """The node of the pod may be cut off, so that its trainer continues."""
    world = running(chief=1, worker=1)
    world.end("job-worker-0", 137)
    world.step()
    world.advance(in_place.HOLD.total_seconds())
    for _ in range(3):
        world.step()
        assert world.pods["job-chief-0"].deleting
        assert world.status.pods_since is None
        assert world.ask("job-worker-0").instruction is WAIT
        world.advance(60)
    world.run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 2, "job-worker-0": 1}


def test_after_the_reported_loss_of_a_peer_a_hung_pod_is_replaced_at_once() -> None:
    """The operator has waited for its end before it counted the loss."""
    world = running(chief=1, worker=1)
    before = uids_of(world)
    world.end("job-chief-0", 75)
    world.run_until_quiet()
    assert world.status.attempt == 1
    world.advance(installation.SETTLING.total_seconds()).run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 1, "job-worker-0": 2}
    assert uids_of(world)["job-chief-0"] == before["job-chief-0"]


def test_after_a_stall_no_trainer_is_waited_for() -> None:
    world = running({"runPolicy": {"stallDeadlineSeconds": 60}}, chief=1, worker=1)
    world.advance(5)
    reported = job_status.ProgressStatus(step=3, last_update_time=world.now)
    status = world.status.model_copy(update={"progress": reported})
    world.job = world.job.model_copy(update={"status": status})
    world.advance(600).run_until_quiet()
    assert world.status.last_cause == "Stall"
    assert attempts_of(world) == {"job-chief-0": 2, "job-worker-0": 2}


def test_pods_restart_in_place_again_and_again() -> None:
    world = running(chief=1, worker=1)
    before = uids_of(world)
    for attempt in (1, 2, 3):
        world.end("job-chief-0", 75)
        world.end("job-worker-0", 137)
        world.run_until_quiet()
        assert (world.status.attempt, world.status.pods_since) == (attempt + 1, 1)
        assert world.ask("job-chief-0") == run_of(attempt + 1)
        world.advance(3600)
    assert uids_of(world) == before


def test_the_end_of_an_earlier_run_does_not_count_as_that_of_the_latest() -> None:
    """The chief was told to run attempt 2. What it said before does not say that it has ended."""
    world = running(chief=1, worker=1)
    world.end("job-chief-0", 75)
    world.end("job-worker-0", 137)
    world.run_until_quiet()
    assert world.ask("job-chief-0") == run_of(2)
    world.advance(3600)
    world.end("job-worker-0", 137)
    world.run_until_quiet()
    assert (world.status.attempt, world.status.pods_since) == (3, None)
    assert world.ask("job-worker-0").instruction is WAIT
    world.advance(in_place.HOLD.total_seconds()).run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 3, "job-worker-0": 1}


def test_a_pod_that_an_operator_created_late_does_not_join_a_later_attempt() -> None:
    world = running(chief=1, worker=1)
    late = dataclasses.replace(
        world.pods.pop("job-worker-0"), uid="late", phase=observation.Phase.PENDING
    )
    world.run_until_quiet()
    world.end("job-chief-0", 75, attempt=1)
    world.step()
    assert world.status.pods_since == 1
    del world.pods["job-worker-0"]
    world.pods["job-worker-0"] = late
    world.run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 1, "job-worker-0": 2}


def test_a_late_pod_is_deleted_at_once_although_its_trainer_may_end_soon() -> None:
    """The attempt has begun, so a trainer of an earlier one would live next to it."""
    world = running(chief=1, worker=1)
    late = world.pods.pop("job-worker-0")
    del world.pods["job-chief-0"]
    world.run_until_quiet()
    world.run().run_until_quiet()
    world.advance(3600)
    del world.pods["job-worker-0"]
    world.run_until_quiet()
    world.end("job-chief-0", 75, attempt=2)
    world.step()
    assert (world.status.attempt, world.status.pods_since) == (3, 2)
    world.pods["job-worker-0"] = late
    world.step()
    assert world.pods["job-worker-0"].deleting


@pytest.mark.parametrize(
    "change", [{"agent": "other"}, {"agent": ""}, {"disrupted": True}, {"deleting": True}]
)
def test_other_pods_leave(change: dict[str, Any]) -> None:
    world = running(chief=1, worker=1)
    world.update("job-chief-0", **change)
    before = uids_of(world)
    world.end("job-chief-0", 75)
    world.end("job-worker-0", 137)
    world.run_until_quiet()
    world.run().run_until_quiet()
    assert world.status.attempt == 2
    assert uids_of(world)["job-worker-0"] == before["job-worker-0"]
    assert uids_of(world)["job-chief-0"] != before["job-chief-0"]


def test_pods_of_another_image_leave() -> None:
    """An operator of another version would mix two versions of the trainer in one attempt."""
    world = running(chief=1, worker=1)
    world.end("job-chief-0", 75)
    world.end("job-worker-0", 137)
    world.settings = dataclasses.replace(world.settings, trainer_image="tfparallel/trainer:next")
    world.run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 2, "job-worker-0": 2}


def test_pods_of_another_spec_leave() -> None:
    world = running(chief=1, worker=1)
    world.end("job-chief-0", 75)
    world.end("job-worker-0", 137)
    world.edit(backoff_limit=9).run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 2, "job-worker-0": 2}


def test_a_restart_that_pauses_keeps_no_pod() -> None:
    world = running(chief=1, worker=1)
    for attempt in (2, 3):
        world.end("job-chief-0", 75)
        world.end("job-worker-0", 137)
        world.run_until_quiet()
        assert world.status.attempt == attempt
    assert attempts_of(world) == {"job-chief-0": 3, "job-worker-0": 3}


def test_the_evaluator_is_replaced_because_it_loses_no_peer() -> None:
    checkpoint = {"trainer": {"epochs": 1, "checkpoint": {"claim": "c"}}}
    world = running(checkpoint, chief=1, worker=1, evaluator=1)
    assert not world.pods["job-evaluator-0"].agent
    world.end("job-chief-0", 75)
    world.end("job-worker-0", 137)
    world.run_until_quiet()
    assert attempts_of(world) == {"job-chief-0": 1, "job-worker-0": 1, "job-evaluator-0": 2}
    world.run().run_until_quiet()
    world.exit("job-evaluator-0", 137).run_until_quiet()
    assert world.status.pods_since == 1
    assert world.pods["job-evaluator-0"].replica_attempt == 1


def test_scaling_keeps_no_pod() -> None:
    world = running({"runPolicy": {"scaleCooldownSeconds": 0}}, chief=1, worker=2)
    world.end("job-chief-0", 75)
    for name in ("job-worker-0", "job-worker-1"):
        world.end(name, 137)
    world.run_until_quiet()
    assert world.status.pods_since == 1
    world.scale(1).run_until_quiet()
    assert world.status.pods_since is None
    assert set(attempts_of(world).values()) == {3}


def test_only_the_shipped_trainer_has_an_agent() -> None:
    def agents_of(spec: dict[str, Any], **roles: Any) -> set[bool]:
        world = AgentWorld(builders.a_job(trainer=True, spec=spec, **roles))
        world.run_until_quiet()
        return {bool(pod.agent) for pod in world.pods.values()}

    assert agents_of({}, chief=1, worker=1) == {True}
    assert agents_of({"strategy": "ParameterServer"}, chief=1, worker=1, ps=1) == {True}
    changes: list[dict[str, Any]] = [
        {"command": ["bash", "-c", "python -m tfparallel_trainer"]},
        {"env": [{"name": environment.AGENT_URL, "value": ""}]},
    ]
    for change in changes:
        containers = [{"name": "tensorflow", **change}]
        worker = {"replicas": 1, "template": {"spec": {"containers": containers}}}
        assert agents_of({"tfReplicaSpecs": {"Worker": worker}}, worker=1) == {False}


def test_a_late_agent_does_nothing() -> None:
    world = running(chief=1, worker=1)
    world.update("job-chief-0", deleting=True)
    assert world.end("job-chief-0", 75) is EXIT


def test_agents_of_a_large_gang_ask_seldom() -> None:
    world = running(chief=1, worker=1)
    pod = world.pods["job-chief-0"]
    end = agents.RunEnd(run=agents.Run(attempt=1, replica_attempt=0), code=75)
    waits = [in_place.answer(world.status, pod, end, size).seconds for size in (2, 500, 100_000)]
    assert waits == [0.25, 5.0, 20.0]


@pytest.mark.parametrize("writes", list(itertools.product((0, 1, 2), repeat=3)))
def test_an_operator_that_dies_after_any_write_comes_to_the_same_end(
    writes: tuple[int, int, int],
) -> None:
    world = running(chief=1, worker=2)
    world.update("job-chief-0", agent="other")
    del world.pods["job-worker-1"]
    for number in writes:
        world.step(writes=number)
    world.end("job-worker-0", 75, attempt=1)
    for number in writes:
        world.reap()
        world.step(writes=number)
        begun = world.status.pods_since == 1
        assert (world.ask("job-worker-0").instruction is RUN) == begun
        is_overlapping = world.pods.get("job-chief-0") and attempts_of(world)["job-chief-0"] == 1
        assert not (begun and is_overlapping)
    world.run_until_quiet()
    assert (world.status.attempt, world.status.pods_since) == (2, 1)
    assert attempts_of(world) == {"job-chief-0": 2, "job-worker-0": 1, "job-worker-1": 2}


def test_a_worker_of_servers_restarts_in_its_pod() -> None:
    world = with_servers()
    before = uids_of(world)
    assert world.end("job-worker-0", 137) is WAIT
    world.run_until_quiet()
    assert (world.status.attempt, world.status.replica_attempts) == (1, {"worker-0": 1})
    assert world.status.replica_pods_since == {"worker-0": 0}
    assert world.ask("job-worker-0") == run_of(1, 1)
    assert uids_of(world) == before
    assert builders.state_of(world) is names.State.RUNNING
    assert world.status.restarts.failure == 1


def test_a_server_and_the_chief_restart_in_their_pods() -> None:
    """The chief notices the loss as long as nothing listens at the address of the server."""
    world = with_servers()
    before = uids_of(world)
    assert world.end("job-ps-0", 137) is WAIT
    world.run_until_quiet()
    assert world.status.replica_attempts == {"ps-0": 1, "chief-0": 1}
    assert world.ask("job-ps-0").instruction is WAIT, "the chief still trains"
    assert world.end("job-chief-0", 75, replica_attempt=0) is WAIT
    world.run_until_quiet()
    assert world.ask("job-ps-0") == world.ask("job-chief-0") == run_of(1, 1)
    assert uids_of(world) == before
    assert (world.status.attempt, world.status.restarts.failure) == (1, 1)


def test_a_chief_that_does_not_notice_the_loss_of_a_server_is_replaced() -> None:
    world = with_servers()
    before = uids_of(world)
    world.end("job-ps-0", 137)
    world.run_until_quiet()
    world.advance(in_place.HOLD.total_seconds())
    world.step()
    assert world.pods["job-chief-0"].deleting
    assert world.ask("job-ps-0").instruction is WAIT
    world.run_until_quiet()
    assert world.ask("job-ps-0") == run_of(1, 1)
    assert uids_of(world) == {**before, "job-chief-0": world.pods["job-chief-0"].uid}
    (container,) = world.manifests[-1]["spec"]["containers"]
    assert {"name": "TFPARALLEL_REPLICA_ATTEMPT", "value": "1"} in container["env"]


def test_a_replica_restarts_in_its_pod_again_and_again() -> None:
    world = with_servers()
    before = uids_of(world)
    for restart in (1, 2, 3):
        world.end("job-worker-0", 137)
        world.run_until_quiet()
        assert world.status.replica_pods_since == {"worker-0": 0}
        assert world.ask("job-worker-0") == run_of(1, restart)
        world.advance(3600)
    assert uids_of(world) == before


def test_the_end_of_an_earlier_run_of_a_replica_does_not_count_as_that_of_the_latest() -> None:
    world = with_servers()
    world.end("job-ps-0", 137)
    world.end("job-chief-0", 75)
    world.run_until_quiet()
    assert world.ask("job-chief-0") == run_of(1, 1)
    world.advance(3600)
    world.end("job-ps-0", 137)
    world.run_until_quiet()
    assert world.status.replica_attempts == {"ps-0": 2, "chief-0": 2}
    assert world.status.replica_pods_since == {}
    world.advance(in_place.HOLD.total_seconds()).run_until_quiet()
    assert world.status.replica_pods_since == {"ps-0": 0}
    assert world.pods["job-chief-0"].replica_attempt == 2


def test_a_late_pod_of_a_replica_does_not_join_a_later_run() -> None:
    world = with_servers()
    late = world.pods.pop("job-worker-0")
    world.run_until_quiet()
    world.run().run_until_quiet()
    world.advance(3600)
    world.end("job-worker-0", 137)
    world.run_until_quiet()
    assert world.status.replica_pods_since == {"worker-0": 1}
    world.pods["job-worker-0"] = late
    world.step()
    assert world.pods["job-worker-0"].deleting
    pending = dataclasses.replace(late, replica_attempt=1, phase=observation.Phase.PENDING)
    world.pods["job-worker-0"] = pending
    world.step()
    assert world.pods["job-worker-0"].deleting


def test_a_restart_of_all_replicas_with_servers_keeps_no_pod() -> None:
    rules = {"failurePolicy": {"rules": [{"action": "RestartGang"}]}}
    world = running({"strategy": "ParameterServer", "runPolicy": rules}, chief=1, worker=1, ps=1)
    for name in tuple(world.pods):
        world.end(name, 137)
    world.run_until_quiet()
    assert set(attempts_of(world).values()) == {2}
    assert world.status.replica_pods_since == {}


def test_scaling_replaces_the_chief_of_servers() -> None:
    world = with_servers()
    before = uids_of(world)
    world.advance(3600).scale(3).run_until_quiet()
    assert world.pods["job-chief-0"].replica_attempt == 1
    assert uids_of(world)["job-ps-0"] == before["job-ps-0"]


@pytest.mark.parametrize("writes", list(itertools.product((0, 1, 2), repeat=3)))
def test_an_operator_that_dies_while_replicas_restart_alone_comes_to_the_same_end(
    writes: tuple[int, int, int],
) -> None:
    world = with_servers()
    before = uids_of(world)
    world.end("job-ps-0", 137)
    for number in writes:
        world.step(writes=number)
    world.end("job-chief-0", 75, replica_attempt=0)
    for number in writes:
        world.step(writes=number)
        begun = world.status.replica_pods_since == {"ps-0": 0, "chief-0": 0}
        assert {world.ask(name) for name in ("job-ps-0", "job-chief-0")} == {
            run_of(1, 1) if begun else agents.AgentResponse(instruction=WAIT, seconds=0.25)
        }
    world.run_until_quiet()
    assert world.status.replica_attempts == {"ps-0": 1, "chief-0": 1}
    assert uids_of(world) == before


def test_a_lost_pod_of_many_costs_as_many_writes_as_one_of_three() -> None:
    assert _count_writes(300) == _count_writes(3)


def _count_writes(replicas: int) -> int:
    world = running(chief=1, worker=replicas - 1)
    before = world.writes
    del world.pods["job-worker-1"]
    world.step()
    for name in world.pods:
        world.end(name, 75, attempt=1)
    world.run_until_quiet()
    world.run().run_until_quiet()
    assert len(world.pods) == replicas
    return world.writes - before
