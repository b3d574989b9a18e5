"""Workers that come and go: a new attempt, or a new chief where servers hold the weights."""

from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, load, names, types
from tfparallel_operator.core import layout
from tfparallel_operator.core.status import conditions


def a_world(workers: int = 2, spec: dict[str, Any] | None = None, **roles: int) -> builders.World:
    document = builders.manifest(trainer=False, worker=workers, **roles)
    document["spec"].update(spec or {})
    worker = document["spec"]["tfReplicaSpecs"]["Worker"]
    worker.update(minReplicas=1, maxReplicas=8)
    return builders.World(load.parse_job(document))


def running(workers: int = 2, **more: Any) -> builders.World:
    world = a_world(workers, **more)
    world.run_until_quiet()
    world.run().run_until_quiet()
    return world


def test_a_gang_is_scaled_by_a_new_attempt_after_the_cool_down() -> None:
    world = running(chief=1)
    assert (world.status.workers, len(world.pods)) == (2, 3)
    world.scale(3).run_until_quiet()
    assert world.status.attempt == 1, "training has run for no minute yet"
    wake_at = world.decide().wake_at
    assert wake_at is not None
    assert (wake_at - builders.START).total_seconds() == 60
    assert world.status.replicas["Worker"].desired == 2
    world.now = wake_at
    world.step()
    assert world.status.attempt == 2
    assert all(pod.deleting for pod in world.pods.values())
    assert conditions.is_true(world.status, names.ConditionType.RESTARTING)
    world.run_until_quiet()
    assert len(world.pods) == 4
    assert {pod.attempt for pod in world.pods.values()} == {2}
    assert (world.status.workers, world.status.replicas["Worker"].desired) == (3, 3)
    assert world.status.restarts == job_status.Restarts(), "scaling is no failure"


def test_a_gang_shrinks_likewise() -> None:
    world = running(workers=4)
    world.scale(1)
    world.advance(60).run_until_quiet()
    assert set(world.pods) == {"job-worker-0"}
    assert (world.status.attempt, world.status.workers) == (2, 1)
    assert world.status.strategy == "MultiWorkerMirrored"


def test_with_servers_the_chief_alone_runs_again() -> None:
    world = running(chief=1, ps=1)
    before = {name: pod.uid for name, pod in world.pods.items()}
    world.scale(4)
    world.advance(60).run_until_quiet()
    after = {name: pod.uid for name, pod in world.pods.items()}
    assert world.status.attempt == 1
    assert {name for name in before if before[name] != after[name]} == {"job-chief-0"}
    assert after.keys() - before.keys() == {"job-worker-2", "job-worker-3"}
    assert world.status.replica_attempts == {"chief-0": 1}, "workers that join are new"
    assert world.status.restarts == job_status.Restarts()


def test_a_worker_that_went_and_comes_back_is_never_the_same_pod() -> None:
    world = running(workers=3, chief=1, ps=1)
    for workers in (1, 3, 2, 3):
        world.scale(workers)
        world.advance(60).run_until_quiet()
        world.run().run_until_quiet()
        names_of_workers = [name for name in world.pods if "worker" in name]
        assert len(names_of_workers) == workers
        assert world.status.state is names.State.RUNNING
    assert len(set(world.created)) == len(world.created)


def test_nobody_waits_for_a_cool_down_while_pods_wait() -> None:
    world = a_world(workers=8)
    world.run_until_quiet()
    world.run("job-worker-0").run_until_quiet()
    world.scale(1).run_until_quiet()
    assert (world.status.attempt, set(world.pods)) == (2, {"job-worker-0"})


def test_an_attempt_that_has_no_pod_yet_begins_with_the_new_number() -> None:
    world = a_world()
    world.step(writes=1)
    world.scale(3).run_until_quiet()
    assert (world.status.attempt, world.status.workers, len(world.pods)) == (1, 3, 3)


def test_a_number_that_changes_while_pods_are_created_waits_for_the_next_attempt() -> None:
    world = a_world()
    world.step(writes=4)
    assert set(world.pods) == {"job-worker-0"}
    world.scale(3)
    world.step()
    assert (world.status.attempt, world.status.workers) == (2, 3)
    world.run_until_quiet()
    assert {pod.attempt for pod in world.pods.values()} == {2}


def test_a_suspended_job_is_resumed_with_the_new_number() -> None:
    world = running()
    world.edit(suspend=True).run_until_quiet()
    world.scale(5).run_until_quiet()
    assert world.pods == {}
    world.edit(suspend=False).run_until_quiet()
    assert len(world.pods) == 5


def test_a_job_that_has_ended_is_not_scaled() -> None:
    world = running(chief=1)
    world.exit("job-chief-0", 0).run_until_quiet()
    world.scale(5)
    world.advance(3600).run_until_quiet()
    assert set(world.pods) == {"job-chief-0"}
    assert world.status.workers == 2


def test_a_loss_is_answered_before_the_scaling() -> None:
    world = running(chief=1)
    world.scale(3)
    world.advance(60)
    del world.pods["job-worker-1"]
    world.run_until_quiet()
    assert (world.status.attempt, world.status.restarts.disruption) == (2, 1)
    assert world.status.workers == 3


def test_the_selector_finds_the_workers() -> None:
    world = running(chief=1)
    assert world.status.selector == (
        "tfparallel.dev/job-name=job,tfparallel.dev/replica-role=worker"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"maxReplicas": 1}, "Worker.replicas is not between its minReplicas and maxReplicas"),
        ({"minReplicas": 3}, "Worker.replicas is not between its minReplicas and maxReplicas"),
    ],
)
def test_bounds_hold_for_the_number(change: dict[str, int], sentence: str) -> None:
    document = builders.manifest(worker=2)
    document["spec"]["tfReplicaSpecs"]["Worker"].update(change)
    with pytest.raises(load.SpecError, match=sentence):
        load.parse_job(document)


def test_only_workers_have_bounds() -> None:
    document = builders.manifest(worker=2, ps=1)
    document["spec"]["tfReplicaSpecs"]["PS"]["maxReplicas"] = 3
    with pytest.raises(load.SpecError, match="only workers come and go"):
        load.parse_job(document)


@pytest.mark.parametrize("mesh", [{"data": 2}, {"auto": True}])
def test_a_mesh_without_a_rest_fits_one_number_of_workers(mesh: dict[str, Any]) -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["spec"].update(strategy="ModelSplit", mesh=mesh)
    document["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 3
    with pytest.raises(load.SpecError, match="ModelSplit if one axis is -1"):
        load.parse_job(document)


def test_a_mesh_with_a_rest_takes_the_devices_that_there_are() -> None:
    document = builders.manifest(trainer=True, worker=2)
    document["spec"].update(strategy="ModelSplit", mesh={"data": -1})
    document["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 4
    world = builders.World(load.parse_job(document))
    world.run_until_quiet()
    world.run()
    world.scale(4)
    world.advance(60).run_until_quiet()
    assert (world.status.attempt, len(world.pods)) == (2, 4)


def test_one_worker_that_may_become_several_trains_as_one_of_several() -> None:
    job = a_world(workers=1).job
    assert layout.build(job).strategy is types.Strategy.MULTI_WORKER_MIRRORED
