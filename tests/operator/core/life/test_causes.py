"""Why replicas are lost, what each cause is counted as, and what it leads to."""

import dataclasses
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import load, names, policies, types
from tfparallel_operator.core import installation, layout, observation, replicas
from tfparallel_operator.core.life import failure
from tfparallel_operator.core.pods import memory
from tfparallel_operator.core.status import conditions

WORKER = replicas.Replica(types.Role.WORKER, 0)


def running(**job: Any) -> builders.World:
    world = builders.World(builders.a_job(**job))
    world.settle()
    world.run()
    world.settle()
    return world


def rules(*entries: dict[str, Any], **policy: Any) -> dict[str, Any]:
    return {"failurePolicy": {"rules": list(entries)}, **policy}


def reason(world: builders.World) -> str:
    failed = conditions.find(world.status, names.Condition.FAILED)
    return "" if failed is None else failed.reason


def ended(
    code: int, why: str = "Error", *, of_source: bool = False, **more: Any
) -> observation.Pod:
    how = observation.Exit(code, why, "", builders.START, of_source)
    failed = observation.Phase.FAILED
    return observation.Pod("job-worker-0", "u", WORKER, 1, 0, failed, exit=how, **more)


@pytest.mark.parametrize(
    ("pod", "policy", "cause"),
    [
        (ended(1, disrupted=True), None, policies.Cause.DISRUPTION),
        (ended(143, deleting=True), None, policies.Cause.DISRUPTION),
        (ended(-1, "Evicted", disrupted=True), None, policies.Cause.DISRUPTION),
        (ended(-1, "UnexpectedAdmissionError"), None, policies.Cause.INFRASTRUCTURE),
        (ended(-1, "OutOfcpu"), None, policies.Cause.INFRASTRUCTURE),
        (ended(-1, "StartError"), None, policies.Cause.RETRYABLE_EXIT),
        (ended(137, "OOMKilled"), None, policies.Cause.OUT_OF_MEMORY),
        (ended(77), None, policies.Cause.OUT_OF_MEMORY),
        (ended(79), None, policies.Cause.STALL),
        (ended(1), None, policies.Cause.RETRYABLE_EXIT),
        (ended(65), None, policies.Cause.PERMANENT_EXIT),
        (ended(1), "ExitCode", policies.Cause.PERMANENT_EXIT),
        (ended(137), "ExitCode", policies.Cause.RETRYABLE_EXIT),
        (ended(1), "Never", policies.Cause.PERMANENT_EXIT),
        (ended(65), "OnFailure", policies.Cause.RETRYABLE_EXIT),
        (ended(73), None, policies.Cause.RETRYABLE_EXIT),
        (ended(73, of_source=True), None, policies.Cause.INFRASTRUCTURE),
        (ended(73, of_source=True), "Never", policies.Cause.INFRASTRUCTURE),
        (ended(78, of_source=True), None, policies.Cause.PERMANENT_EXIT),
    ],
)
def test_the_cause_of_a_loss(
    pod: observation.Pod, policy: str | None, cause: policies.Cause
) -> None:
    document = builders.manifest(worker=1)
    if policy is not None:
        document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = policy
    assert failure.cause(layout.build(load.parse_job(document)), pod) is cause


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (75, policies.Cause.RETRYABLE_EXIT),
        (65, policies.Cause.PERMANENT_EXIT),
        (3, policies.Cause.PERMANENT_EXIT),
        (139, policies.Cause.RETRYABLE_EXIT),
    ],
)
def test_the_shipped_trainers_codes_go_before_those_of_tfjob(
    code: int, cause: policies.Cause
) -> None:
    document = builders.manifest(trainer=True, worker=1)
    document["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    assert failure.cause(layout.build(load.parse_job(document)), ended(code)) is cause


def test_a_pod_that_is_being_deleted_is_no_failed_one() -> None:
    world = running(worker=1, run_policy={"backoffLimit": 0})
    world.update("job-worker-0", deleting=True)
    assert not world.step() or world.status.attempt == 1
    assert world.status.state is names.State.RUNNING
    world.exit("job-worker-0", 143)
    world.settle()
    assert world.status.attempt == 2
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)


def test_peers_of_a_pod_that_is_being_taken_fail_in_consequence() -> None:
    world = running(chief=1, worker=2, run_policy={"backoffLimit": 0})
    preempted = {"reason": "PreemptionByScheduler", "message": "default-scheduler: preempting."}
    world.update("job-worker-1", disrupted=True, **preempted)
    world.exit("job-chief-0", 1)
    world.settle()
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Disruption": 1}
    assert world.events[-1].message == (
        "job-worker-1 is being deleted or evicted (PreemptionByScheduler): default-scheduler:"
        " preempting; all replicas run again (a disruption)"
    )


def test_a_verdict_waits_for_signs_that_the_cluster_took_a_replica() -> None:
    world = running(chief=1, worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", 1)
    world.settle()
    assert reason(world) == ""
    assert world.decide().wake_at == world.now + installation.SETTLING
    world.update("job-chief-0", disrupted=True)
    world.settle()
    assert (world.status.attempt, world.status.restarts.disruption) == (2, 1)


def test_while_a_failure_of_a_gang_settles_its_status_says_so() -> None:
    world = running(chief=1, worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", 1)
    world.settle()
    condition = conditions.find(world.status, names.Condition.RUNNING)
    assert condition is not None
    sentences = condition.message.split("; ")
    assert sentences[0] == world.status.ready + " replicas run or have completed"
    assert sentences[1].startswith("job-worker-0 exited with code 1 ")
    assert sentences[2] == "until 00:00:10Z the operator looks for a loss that caused it"


def test_a_verdict_without_signs_is_spoken_when_it_has_settled() -> None:
    world = running(chief=1, worker=1, run_policy={"backoffLimit": 0})
    world.exit("job-worker-0", 1)
    world.settle()
    world.advance(10)
    world.settle()
    assert reason(world) == names.Reason.BACKOFF_LIMIT_EXCEEDED


def test_a_restart_becomes_a_disruption_when_a_node_turns_out_to_be_lost() -> None:
    world = running(chief=1, worker=1, run_policy={"backoffLimit": 1})
    world.exit("job-chief-0", 1)
    world.step()
    assert world.status.restart_causes == {"RetryableExit": 1}
    world.update("job-worker-0", disrupted=True)
    world.step()
    world.settle()
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Disruption": 1}
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 1)


def test_a_pod_that_vanishes_before_its_peers_exist_is_not_recreated() -> None:
    world = builders.World(builders.a_job(chief=1, worker=2))
    world.step(writes=4)
    assert list(world.pods) == ["job-chief-0"]
    world.step(writes=1)
    assert world.status.replicas["Chief"].seen == "0"
    del world.pods["job-chief-0"]
    world.settle()
    assert world.status.attempt == 2
    assert world.status.restart_causes == {"Disruption": 1}
    assert len(set(world.created)) == len(world.created)


def test_the_pause_before_a_restart_doubles_up_to_a_bound() -> None:
    world = running(worker=1, run_policy={"backoffLimit": 9})
    pauses = []
    for _ in range(9):
        world.exit("job-worker-0", 1)
        before = world.now
        world.settle()
        pauses.append((world.now - before).total_seconds())
        world.run()
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300, 300]


def test_no_pod_is_created_while_a_restart_pauses() -> None:
    world = running(worker=1)
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


def test_a_restart_after_a_long_run_does_not_pause() -> None:
    world = running(worker=1)
    for _ in range(3):
        world.advance(3600)
        world.exit("job-worker-0", 1)
        before = world.now
        world.settle()
        assert world.now == before
        world.run()


def test_a_node_that_turns_pods_away_costs_no_budget_and_is_left_in_peace() -> None:
    world = running(worker=1, run_policy={"backoffLimit": 0})
    for times in range(1, 4):
        away = observation.Exit(-1, "OutOfnvidia.com/gpu", "no device", world.now)
        world.update("job-worker-0", phase=observation.Phase.FAILED, exit=away)
        before = world.now
        world.settle()
        assert world.status.restart_causes == {"Infrastructure": times}
        assert (world.now - before).total_seconds() == 10 * 2 ** (times - 1)
    assert world.status.restarts.failure == 0


@pytest.mark.parametrize("code", [3, 65])
def test_the_first_rule_that_matches_decides(code: int) -> None:
    policy = rules(
        {"roles": ["PS"], "action": "FailJob"},
        {"exitCodes": [3, 65], "action": "RestartGang"},
        {"action": "FailJob"},
    )
    world = running(trainer=True, worker=2, run_policy=policy)
    world.exit("job-worker-1", code)
    world.settle()
    assert world.status.attempt == 2
    world.run()
    world.exit("job-worker-1", 4)
    world.advance(10)
    world.settle()
    assert reason(world) == names.Reason.FAILURE_POLICY


def test_a_rule_may_fail_the_job_for_a_disruption() -> None:
    world = running(worker=2, run_policy=rules({"causes": ["Disruption"], "action": "FailJob"}))
    del world.pods["job-worker-1"]
    world.settle()
    assert reason(world) == names.Reason.FAILURE_POLICY


def test_a_rule_may_restart_one_replica_of_a_gang() -> None:
    policy = rules({"exitCodes": [3], "action": "RestartReplica"})
    world = running(chief=1, worker=2, run_policy=policy)
    world.exit("job-worker-1", 3)
    world.settle()
    assert (world.status.attempt, world.status.replica_attempts) == (1, {"worker-1": 1})
    world.exit("job-worker-0", 1)
    world.settle()
    assert world.status.attempt == 2


def test_a_rule_may_restart_the_gang_of_parameter_servers() -> None:
    world = running(chief=1, worker=2, ps=1, run_policy=rules({"action": "RestartGang"}))
    world.exit("job-worker-1", 1)
    world.settle()
    assert world.status.attempt == 2
    assert {pod.attempt for pod in world.pods.values()} == {2}


def test_restarts_by_a_rule_are_bounded() -> None:
    policy = rules({"exitCodes": [65], "action": "RestartGang"}, backoffLimit=1)
    world = running(worker=1, run_policy=policy)
    for _ in range(2):
        world.exit("job-worker-0", 65)
        world.settle()
    assert reason(world) == names.Reason.BACKOFF_LIMIT_EXCEEDED


def test_an_ignored_worker_is_not_run_again_also_when_its_pod_is_removed() -> None:
    policy = rules({"roles": ["Worker"], "exitCodes": [3], "action": "Ignore"}, backoffLimit=0)
    world = running(chief=1, worker=2, run_policy=policy)
    world.exit("job-worker-1", 3)
    world.settle()
    assert world.status.state is names.State.RUNNING
    assert world.status.replicas["Worker"].ignored == "1"
    del world.pods["job-worker-1"]
    world.settle()
    assert world.status.attempt == 1
    assert "job-worker-1" not in world.pods
    assert world.status.replicas["Worker"].failed == 1
    events = [event for event in world.events if "goes on without it" in event.message]
    assert len(events) == 1


def test_of_all_workers_the_last_one_cannot_be_ignored() -> None:
    policy = rules({"roles": ["Worker"], "action": "Ignore"})
    spec = {"successPolicy": "AllWorkers"}
    world = running(worker=2, run_policy=policy, spec=spec)
    world.exit("job-worker-0", 1)
    world.settle()
    assert world.status.replicas["Worker"].ignored == "0"
    world.exit("job-worker-1", 1)
    world.settle()
    world.advance(10)
    world.settle()
    assert reason(world) == names.Reason.FAILURE_POLICY


def test_the_workers_that_are_left_succeed_for_all() -> None:
    policy = rules({"roles": ["Worker"], "action": "Ignore"})
    world = running(worker=2, run_policy=policy, spec={"successPolicy": "AllWorkers"})
    world.exit("job-worker-0", 1)
    world.settle()
    world.exit("job-worker-1", 0)
    world.settle()
    assert world.status.state is names.State.SUCCEEDED


def test_a_rule_that_fails_the_job_for_its_evaluator_lets_training_go_on() -> None:
    world = running(worker=1, evaluator=1, run_policy=rules({"action": "FailJob"}))
    world.exit("job-evaluator-0", 1)
    world.settle()
    assert world.status.state is names.State.RUNNING
    assert world.status.replicas["Evaluator"].ignored == "0"


@pytest.mark.parametrize("roles", [[], ["PS"], ["Worker", "Chief"]])
def test_what_training_needs_cannot_be_ignored(roles: list[str]) -> None:
    policy = rules({"roles": roles, "action": "Ignore"})
    with pytest.raises(load.SpecError, match="cannot go on without its chief or a server"):
        builders.a_job(chief=1, worker=1, run_policy=policy)


def memory_of(world: builders.World, role: types.Role) -> dict[str, Any]:
    growths = world.status.replicas[role.value].memory_growths
    pod = builders.a_pod(world.job, replicas.Replica(role, 0), memory_growths=growths)
    resources: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return resources


def test_a_replica_out_of_memory_asks_for_more_the_next_time() -> None:
    document = builders.manifest(chief=1, worker=2)
    asked = {"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"memory": "2Gi"}}
    for spec in document["spec"]["tfReplicaSpecs"].values():
        spec["template"]["spec"]["containers"][0]["resources"] = asked
        spec["restartPolicy"] = "Never"
    growth = {"growthPercent": 50, "maxMemory": "4Gi"}
    document["spec"]["runPolicy"] = {"outOfMemory": growth, "backoffLimit": 3}
    world = builders.World(load.parse_job(document))
    limits = []
    for _ in range(3):
        world.settle()
        world.run()
        world.exit("job-worker-0", 137)
        killed = dataclasses.replace(builders.an_exit(137, world.now), reason="OOMKilled")
        world.update("job-worker-0", exit=killed)
        world.settle()
        limits.append(memory_of(world, types.Role.WORKER)["limits"]["memory"])
    assert limits == ["3072Mi", "4Gi", "4Gi"]
    assert memory_of(world, types.Role.WORKER)["requests"] == {"memory": "3456Mi", "cpu": "1"}
    assert memory_of(world, types.Role.CHIEF) == asked
    assert world.status.restart_causes == {"OutOfMemory": 3}


def test_only_the_memory_that_a_container_asks_for_grows() -> None:
    policy = policies.OutOfMemory(growth_percent=100, max_memory="8Gi")
    container = {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}}
    memory.grow(container, policy, 1)
    assert container["resources"] == {"requests": {"cpu": "1"}, "limits": {"memory": "2048Mi"}}


def test_without_the_jobs_leave_memory_stays_as_it_is() -> None:
    world = running(worker=1)
    killed = dataclasses.replace(builders.an_exit(137, world.now), reason="OOMKilled")
    world.update("job-worker-0", phase=observation.Phase.FAILED, exit=killed)
    world.settle()
    assert world.status.restart_causes == {"OutOfMemory": 1}
    assert world.status.replicas["Worker"].memory_growths == 0


@pytest.mark.parametrize(
    ("quantity", "bytes_"),
    [
        ("5", 5),
        ("2k", 2000),
        ("3Mi", 3 * 2**20),
        ("1Ti", 2**40),
        ("1e9", 10**9),
        ("1.5Gi", 3 * 2**29),
    ],
)
def test_quantities_are_read(quantity: str, bytes_: int | None) -> None:
    assert memory.parse(quantity) == bytes_


def test_growth_neither_shrinks_nor_passes_the_bound() -> None:
    policy = policies.OutOfMemory(max_memory="8Gi")
    assert memory.grown("1Gi", policy, 2) == "4096Mi"
    assert memory.grown("1Gi", policy, 500) == "8Gi"
    assert memory.grown("9Gi", policy, 1) == "9Gi"
    assert memory.grown("lots", policy, 1) == "lots"


def test_packages_that_cannot_be_downloaded_are_tried_again_and_cost_no_restart() -> None:
    world = running(trainer=True, worker=1, run_policy={"backoffLimit": 0})
    for attempt in (2, 3):
        failing(world, 73, "packages cannot be downloaded")
        assert world.status.attempt == attempt
        assert builders.truth(world, names.Condition.RESTARTING) == ("True", "SourceFailed")
        world.settle()
    assert (world.status.restarts.failure, world.status.restarts.disruption) == (0, 2)
    assert world.status.restart_causes == {"Infrastructure": 2}


def test_requirements_that_cannot_be_met_fail_the_job_and_say_why() -> None:
    world = running(trainer=True, worker=1)
    failing(world, 78, "requirements.txt: no such package")
    failed = conditions.find(world.status, names.Condition.FAILED)
    assert failed is not None
    assert failed.reason == "SourceFailed"
    assert failed.message == (
        "job-worker-0: init container tfparallel-source exited with code 78 (the configuration"
        " cannot work as given): requirements.txt: no such package"
    )


def failing(world: builders.World, code: int, said: str) -> None:
    """End the pod by its init container, and decide on that."""
    world.exit("job-worker-0", code, said)
    how = world.pods["job-worker-0"].exit
    assert how is not None
    world.update("job-worker-0", exit=dataclasses.replace(how, of_source=True))
    world.step()
