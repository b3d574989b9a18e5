"""When checkpoints are due, and that all processes decide alike."""

import itertools
from collections.abc import Iterator

import pytest

from testing.trainer import normalised, ranks
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import feed
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh import steps
from tfparallel_trainer.loop import observer, training
from tfparallel_trainer.runtime.lifecycle import stall, termination
from tfparallel_trainer.runtime.reporting import console, progress, reports


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, 100),
        ({"everySteps": 7}, 7),
        ({"everyMinutes": 2}, None),
        ({"everySteps": 7, "everyMinutes": 2}, 7),
    ],
)
def test_steps_and_minutes_stand_beside_each_other(
    fields: dict[str, int], steps: int | None
) -> None:
    spec = job_file.Checkpoint.model_validate({"claim": "c", **fields})
    now = iter([0.0, 119.0, 120.0, 130.0, 131.0])
    checkpoint_schedule = training.Schedule(spec, True, lambda: next(now))
    assert [step for step in range(1, 201) if checkpoint_schedule.due_after(step)] == [
        step for step in range(1, 201) if steps is not None and step % steps == 0
    ]
    if "everyMinutes" not in fields:
        assert not checkpoint_schedule.due_by_clock
        return
    assert [checkpoint_schedule.due_by_clock, checkpoint_schedule.due_by_clock] == [False, True]
    checkpoint_schedule.saved()
    assert not checkpoint_schedule.due_by_clock
    assert not training.Schedule(spec, False, itertools.count(0, 1000).__next__).due_by_clock


def test_the_chiefs_clock_makes_all_save_after_the_same_step() -> None:
    data = normalised.examples()
    user_module = ranks.module(normalised.build, normalised.compile_model)
    replicas = ranks.build(user_module, data, 2)
    saved: list[int] = []
    spec = job_file.TrainerSpec.model_validate(
        {"epochs": 1, "globalBatchSize": 3, "checkpoint": {"claim": "c", "everyMinutes": 1}}
    )
    examples = feed.Feed(ranks.feed_of(data, 2, 3))
    # 25 s pass from one look to the next; the clock is looked at once a step and after a save.
    clock: Iterator[int] = itertools.count(0, 25)
    out = console.Console("test")
    training.Training(
        spec=spec,
        examples=examples,
        engine=engine.Synchronous(
            replicas, steps.TrainStep(user_module, replicas, examples.spec), None, None
        ),
        reporter=reports.Reporter(out, None, progress.Pusher(None, out.say), chief=True),
        termination=termination.Termination(lambda: None, 30),
        watch=stall.Watch(stall.Limits(work=600, wait=600)),
        schedule=training.Schedule(spec.checkpoint, True, lambda: float(next(clock))),
        save=lambda at: saved.append(at.step),
        observer=observer.Observer(),
        start=files.Position(step=0, epoch=0, example=0),
    ).run()
    assert saved == [3, 6, 9, 10]
