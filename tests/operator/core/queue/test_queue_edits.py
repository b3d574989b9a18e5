"""Jobs in a queue of Kueue that their user suspends, scales, moves or deletes."""

from testing.operator import builders, queues
from tfparallel_operator.api import names
from tfparallel_operator.core import decision


def test_suspended_by_its_user_it_leaves_the_queue_and_resumed_it_queues_again() -> None:
    world = queues.queued_world()
    queues.admit(world)
    world.run().run_until_quiet()
    world.edit(suspend=True)
    world.step()
    assert world.workload is not None, "its pods still use the quota"
    world.run_until_quiet()
    assert not world.pods
    assert world.workload is None
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobSuspended")
    assert world.status.restarts.disruption == 0
    world.edit(suspend=False).run_until_quiet()
    assert builders.truth(world, names.ConditionType.SUSPENDED) == ("False", "JobResumed")
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobQueued")
    queues.admit(world)
    assert world.status.attempt == 2


def test_a_job_that_is_suspended_from_the_start_is_in_no_queue() -> None:
    world = queues.queued_world(run_policy={"suspend": True})
    assert world.workload is None
    assert not world.manifests


def test_a_workload_that_somebody_deletes_takes_the_pods_with_it() -> None:
    world = queues.queued_world()
    queues.admit(world)
    world.run().run_until_quiet()
    world.workload = None
    world.run_until_quiet()
    assert not world.pods
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobQueued")
    assert queues.workload_of(world).conditions == ()
    assert world.status.restarts.disruption == 1


def scaled(world: builders.World, workers: int) -> None:
    """Have a person scale the workers, and the operator answer."""
    world.scale(workers)
    world.advance(120).run_until_quiet()


def test_scaled_it_queues_again_with_its_new_size_and_no_disruption() -> None:
    world = queues.queued_world(elastic=True, chief=1, worker=2)
    queues.admit(world)
    world.run().run_until_quiet()
    scaled(world, 3)
    assert not world.pods
    assert queues.workload_of(world).counts == {"chief": 1, "worker": 3}
    assert builders.truth(world, queues.ADMITTED) == ("False", "JobQueued")
    assert world.status.restarts.disruption == 0
    queues.admit(world)
    assert len(world.pods) == 4


def test_scaled_while_it_waits_it_asks_for_its_new_size() -> None:
    world = queues.queued_world(elastic=True, chief=1, worker=2)
    scaled(world, 3)
    assert queues.workload_of(world).counts == {"chief": 1, "worker": 3}
    queues.admit(world)
    queues.evict(world)
    scaled(world, 1)
    assert queues.workload_of(world).counts == {"chief": 1, "worker": 1}
    queues.admit(world)
    assert len(world.pods) == 2


def test_evicted_and_scaled_at_once_its_workload_is_deleted_and_not_changed() -> None:
    world = queues.queued_world(elastic=True, chief=1, worker=2)
    queues.admit(world)
    queues.write_conditions(world, ("Evicted", "True", "Preempted", "to make place"))
    world.step()
    world.reap()
    world.scale(3)
    outcome = world.decide()
    assert [deletion.name for deletion in outcome.deletions] == [queues.workload_of(world).name]
    assert [change.type for change in outcome.changes] == [decision.CONFIG_MAP]


def relabelled(world: builders.World, **labels: str) -> None:
    """Have a person change the job's labels."""
    metadata = world.job.metadata.model_copy(update={"labels": labels})
    world.job = world.job.model_copy(update={"metadata": metadata})
    world.run_until_quiet()


def test_another_queue_or_priority_counts_while_it_waits_and_not_while_it_has_quota() -> None:
    world = queues.queued_world()
    relabelled(world, **{names.LABEL_QUEUE: "other", names.LABEL_WORKLOAD_PRIORITY: "urgent"})
    kueue_workload = queues.workload_of(world)
    assert (kueue_workload.queue, kueue_workload.priority_class) == ("other", "urgent")
    queues.admit(world)
    relabelled(world, **{names.LABEL_QUEUE: "third"})
    assert queues.workload_of(world).queue == "other"
    relabelled(world)
    assert len(world.pods) == 3, "whoever has quota stays in the queue without the label"
    assert queues.workload_of(world).queue == "other"
    queues.evict(world)
    assert world.workload is None
    assert builders.truth(world, queues.ADMITTED) is None
    assert len(world.pods) == 3, "without the label it waits for nobody"


def test_a_label_that_comes_late_stops_the_job_until_it_is_admitted() -> None:
    world = builders.World(builders.a_job(worker=2), settings=queues.QUEUES, flavors=queues.FLAVORS)
    world.run_until_quiet()
    world.run()
    assert len(world.pods) == 2
    relabelled(world, **{names.LABEL_QUEUE: "research"})
    assert not world.pods
    assert world.status.restarts.disruption == 0
    queues.admit(world)
    assert world.status.attempt == 2
