"""Training that is slow: what condition Running says, and when it is looked at again."""

import datetime
from typing import Any

from testing.operator import builders
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import installation
from tfparallel_operator.core.life import slowness
from tfparallel_trainer.contract import progress


def running(**job: Any) -> builders.World:
    return builders.running(**{"trainer": True, "worker": 1, **job})


def report(world: builders.World, step: int = 3, **more: Any) -> None:
    sent = progress.Report(step=step, **more)
    reports = job_status.of_report(sent, world.now)
    changed = world.status.model_copy(update=reports._asdict())
    world.job = world.job.model_copy(update={"status": changed})
    world.run_until_quiet()


def message(world: builders.World) -> str:
    condition = world.condition(names.ConditionType.RUNNING)
    return condition.message


def test_no_step_after_a_minute_is_slow_until_one_ends() -> None:
    world = running()
    began = world.now
    assert world.decide().wake_at == began + slowness.SILENCE
    world.advance(59).run_until_quiet()
    assert "slow" not in message(world)
    world.advance(1).run_until_quiet()
    assert "training is slow: no step has ended yet. See what the coordinator" in message(world)
    assert world.decide().wake_at is None
    report(world)
    assert message(world) == "1/1 replicas run or have completed"


def test_each_report_moves_the_silence() -> None:
    world = running()
    for step in range(1, 5):
        world.advance(50)
        report(world, step)
        assert "slow" not in message(world)
        assert world.decide().wake_at == world.now + slowness.SILENCE
    world.advance(60).run_until_quiet()
    assert "training is slow: it has reported nothing since step 4. See whether" in message(world)


def test_a_message_changes_with_the_cause_and_not_with_the_numbers() -> None:
    world = running()
    world.advance(5)
    report(world, input_wait="0.35")
    slow = message(world)
    assert "it waits for its input more than 10% of the time. Do less" in slow
    report(world, 4, input_wait="0.36")
    assert message(world) == slow
    report(world, 5, input_wait="0.05")
    assert message(world) == "1/1 replicas run or have completed"


def test_a_straggler_is_named_until_it_keeps_up() -> None:
    world = running(worker=3)
    world.advance(5)
    report(world, straggler="worker-1")
    slow = "training is slow: worker-1 stays slower than the other replicas. Look at the load"
    assert slow in message(world)
    report(world, 4)
    assert message(world) == "3/3 replicas run or have completed"


def test_words_that_are_no_numbers_slow_nothing() -> None:
    world = running()
    world.advance(5)
    stages = tuple(
        progress.StagePlacement(
            stage=stage,
            devices=("worker-0/CPU:0",),
            device_count=1,
            layers="dense",
            layer_count=1,
            parameter_bytes=1,
            busy_seconds=number,
        )
        for stage, number in enumerate((None, "0", "0.2"))
    )
    placement = progress.Placement(mesh={"stage": 3}, stages=stages)
    for number in ("NaN", "much", ""):
        report(world, input_wait=number, placement=placement)
        assert message(world) == "1/1 replicas run or have completed"


def test_a_script_need_not_report() -> None:
    world = running(trainer=False)
    assert world.decide().wake_at is None
    world.advance(3600).run_until_quiet()
    assert message(world) == "1/1 replicas run or have completed"


def test_time_without_an_operator_is_no_silence() -> None:
    world = running()
    world.advance(3600)
    world.settings = installation.InstallationSettings(trainer_image="i", listening_since=world.now)
    outcome = world.decide()
    assert outcome.status == world.status
    assert outcome.wake_at == world.now + datetime.timedelta(seconds=60)


def test_a_report_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    world = running()
    world.advance(5)
    report(world, input_wait="0.35")
    world.exit("job-worker-0", 1).run_until_quiet()
    world.run().run_until_quiet()
    assert message(world) == "1/1 replicas run or have completed"
