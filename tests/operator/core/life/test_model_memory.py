"""What a job's status says of a split model that does not fit its devices."""

import pytest

from testing.operator import builders, symptoms
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import limits, progress

EXCEEDS = names.ConditionType.EXCEEDS_MEMORY


def report(world: builders.World, memory: progress.MemoryPlan | None, step: int = 1) -> None:
    placement = progress.Placement(mesh={"data": 3}, memory=memory)
    reports = job_status.of_report(progress.Report(step=step, placement=placement), world.now)
    changed = world.status.model_copy(update=reports._asdict())
    world.job = world.job.model_copy(update={"status": changed})


def test_a_model_that_does_not_fit_is_a_condition_before_its_first_step() -> None:
    world = builders.running(worker=3)
    world.advance(5)
    symptoms.report_large_model(world)
    assert world.status.progress is None
    [event] = world.decide().events
    assert (event.type, event.reason) == (decision.EventType.WARNING, names.Reason.MODEL_TOO_LARGE)
    world.run_until_quiet()
    assert world.decide().events == ()
    condition = world.condition(EXCEEDS)
    assert condition.problem == (
        "the model does not fit its devices, by the planner's estimate: one of stage 0 needs"
        " 12 GiB for tensors, and has 8 GiB."
    )
    assert condition.remedy == (
        "The model fits with mesh.shardOptimizer, with a batch of 16, or on devices of 12 GiB."
    )
    assert condition.message == event.message == f"{condition.problem} {condition.remedy}"
    assert world.status.state == "Running"


def test_a_report_before_the_first_step_is_no_progress_of_the_attempt() -> None:
    """Else each attempt that runs out of memory in its first step would count as progress."""
    world = builders.running(worker=3)
    for restarts in (1, 2):
        world.advance(5)
        symptoms.report_large_model(world)
        world.run_until_quiet()
        world.exit("job-worker-1", 137).run_until_quiet()
        assert world.status.restarts_since_progress == restarts
        assert conditions.is_true(world.status, EXCEEDS)
        world.advance(60).run_until_quiet()
        world.run()


@pytest.mark.parametrize(
    "memory", [None, symptoms.PLANNED_MEMORY.model_copy(update={"device_bytes": 12 * 2**30})]
)
def test_a_model_that_fits_or_of_unknown_memory_has_no_condition(
    memory: progress.MemoryPlan | None,
) -> None:
    world = builders.running(worker=3)
    report(world, symptoms.PLANNED_MEMORY)
    world.run_until_quiet()
    assert conditions.is_true(world.status, EXCEEDS)
    report(world, memory, step=2)
    world.run_until_quiet()
    assert conditions.find(world.status, EXCEEDS) is None


def test_a_later_plan_changes_the_message_and_is_no_news() -> None:
    world = builders.running(worker=3)
    report(world, symptoms.PLANNED_MEMORY)
    world.run_until_quiet()
    larger = symptoms.PLANNED_MEMORY.model_copy(update={"stage": 2, "larger_device": "A100-40GB"})
    report(world, larger, step=2)
    assert world.decide().events == ()
    world.run_until_quiet()
    condition = world.condition(EXCEEDS)
    assert "one of stage 2 needs" in condition.message
    assert condition.message.endswith("or on devices of 12 GiB (a A100-40GB has it).")


def test_what_a_pod_reports_is_bounded() -> None:
    change = {"setting": "Mesh", "mesh": "m" * limits.MAX_MESH_LETTERS}
    memory = {
        "stage": limits.MAX_PARTS,
        "peakBytes": limits.MAX_COUNT,
        "deviceBytes": 0,
        "changes": [change] * limits.MAX_FITTING_CHANGES,
    }
    status = {"placement": {"mesh": {"data": 1}, "memory": memory}}
    read = job_status.JobStatus.model_validate(status)
    assert read.placement is not None
    assert read.placement.exceeded_memory is not None
    one_more = {**memory, "changes": [change] * (limits.MAX_FITTING_CHANGES + 1)}
    status = {"placement": {"mesh": {"data": 1}, "memory": one_more}}
    assert job_status.JobStatus.model_validate(status).placement is None
