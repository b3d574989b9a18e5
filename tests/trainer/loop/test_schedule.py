"""When checkpoints are due, and that all processes decide alike."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tensorflow as tf

from testing.trainer import normalised, ranks
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import batch_division, feed, stream
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh.mesh_steps import MeshTrainStep
from tfparallel_trainer.lifecycle import stall, termination
from tfparallel_trainer.loop import execution_length, observer, state_copier, training
from tfparallel_trainer.reporting import console, progress_pusher, reports


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
    checkpoint_schedule = training.CheckpointSchedule(spec, True, lambda: next(now))
    assert [step for step in range(1, 201) if checkpoint_schedule.due_after(step)] == [
        step for step in range(1, 201) if steps is not None and step % steps == 0
    ]
    if "everyMinutes" not in fields:
        assert not checkpoint_schedule.due_by_clock
        return
    assert [checkpoint_schedule.due_by_clock, checkpoint_schedule.due_by_clock] == [False, True]
    checkpoint_schedule.saved()
    assert not checkpoint_schedule.due_by_clock
    late = itertools.count(0, 1000).__next__
    assert not training.CheckpointSchedule(spec, False, late).due_by_clock


class Totals(reports.Reporter):
    """Keeps how many steps are told at each report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.totals: list[tuple[int, int | None]] = []

    @property
    def due(self) -> bool:
        return True

    def train(
        self,
        values: dict[str, float],
        step: int,
        total: int | None,
        epoch: int,
        *,
        has_ended: bool = False,
    ) -> None:
        self.totals.append((step, total))


def prepared(
    spec: job_file.TrainerSpec, source: batch_division.BatchSource, **more: Any
) -> training.Training:
    """Training of two replicas in this process."""
    user_module = ranks.module(normalised.build, normalised.compile_model)
    replicas = ranks.build(user_module, normalised.examples(), 2)
    examples, out = feed.Feed(source), console.Console("test")
    return training.Training(
        spec=spec,
        examples=examples,
        engine=engine.Synchronous(
            replicas, MeshTrainStep(user_module, replicas, examples.spec, 3), None, None
        ),
        reporter=Totals(out, None, progress_pusher.Pusher(None, out.say), chief=True),
        termination=termination.Termination(lambda: None, 30),
        watch=stall.Watch(stall.Limits(work=600, wait=600)),
        observer=observer.Observer(),
        **{
            "schedule": training.CheckpointSchedule(spec.checkpoint, True),
            "save": lambda _: None,
            "start": files.Position(step=0, epoch=0, example=0),
            **more,
        },
    )


def test_the_chiefs_clock_makes_all_save_after_the_same_step() -> None:
    saved: list[int] = []
    spec = job_file.TrainerSpec.model_validate(
        {"epochs": 1, "globalBatchSize": 3, "checkpoint": {"claim": "c", "everyMinutes": 1}}
    )
    # 25 s pass from one look to the next; the clock is looked at once a step and after a save.
    clock: Iterator[int] = itertools.count(0, 25)
    prepared(
        spec,
        ranks.feed_of(normalised.examples(), 2, 3),
        schedule=training.CheckpointSchedule(spec.checkpoint, True, lambda: float(next(clock))),
        save=lambda at: saved.append(at.step),
    ).run()
    assert saved == [3, 6, 9, 10]


def test_the_state_is_copied_after_steps_that_are_not_saved() -> None:
    saved, copied = list[int](), list[files.Position]()
    spec = job_file.TrainerSpec.model_validate(
        {"epochs": 1, "globalBatchSize": 3, "checkpoint": {"claim": "c", "everySteps": 4}}
    )
    copier = state_copier.StateCopier(
        lambda at: lambda: copied.append(at),
        decides=True,
        clock=lambda: 0.0,  # a copy costs nothing
        cpu_clock=lambda: 0.0,
    )
    loop = prepared(
        spec,
        ranks.feed_of(normalised.examples(), 2, 3),
        copier=copier,
        save=lambda at: saved.append(at.step),
    )
    loop.run()
    copier.wait()
    steps = [position.step for position in copied]
    assert steps[0] == 1
    assert len(steps) >= 2
    assert saved == [4, 8, 10]
    assert not {*steps} & {4, 8}  # Step 10 ends the epoch, which is saved after it.
    assert all(position.example == 3 * position.step for position in copied if position.step < 10)


@pytest.mark.parametrize(("saved_step", "expected"), [(1, [2]), (2, [])])
def test_a_last_step_that_only_memory_has_is_saved(saved_step: int, expected: list[int]) -> None:
    saved: list[int] = []
    spec = job_file.TrainerSpec.model_validate(
        {"steps": 2, "globalBatchSize": 3, "checkpoint": {"claim": "c"}}
    )
    prepared(
        spec,
        ranks.feed_of(normalised.examples(), 2, 3),
        start=files.Position(step=2, epoch=0, example=6),
        saved_step=saved_step,
        save=lambda at: saved.append(at.step),
    ).run()
    assert saved == expected


@pytest.mark.parametrize("knows", [True, False])
def test_batches_of_the_data_decide_how_many_steps_there_are(*, knows: bool) -> None:
    """Whatever trainer.globalBatchSize says: the data has 8 batches, of 30 examples."""
    spec = job_file.TrainerSpec.model_validate({"epochs": 3, "globalBatchSize": 3})
    x, y, _ = normalised.examples()
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    if not knows:
        data = data.filter(lambda *_: True)
    division = batch_division.BatchSharding(batch_size=3, ranks=2, local_ranks=(0, 1))
    loop = prepared(spec, stream.StreamSource(data, lambda _: data, division, "training_data"))
    loop.run()
    assert isinstance(loop.reporter, Totals)
    assert loop.position.step == 24
    assert {total for step, total in loop.reporter.totals if knows or step > 8} == {24}
    assert all(total is None for step, total in loop.reporter.totals if step < 8 and not knows)


class BatchObserver(observer.Observer):
    """Is told of each batch."""

    each_batch = True


@pytest.mark.parametrize(
    ("watcher", "can_repeat", "expected"),
    [
        (observer.Observer(), True, [1, 1, 2, 4, 2]),
        (observer.Observer(), False, [1] * 10),
        (BatchObserver(), True, [1] * 10),
    ],
    ids=["short steps", "steps that no loop takes", "callbacks of batches"],
)
def test_executions_of_short_steps_end_with_what_is_due(
    watcher: observer.Observer,
    can_repeat: bool,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step is reported; checkpoints are due every four steps, and an epoch has ten."""
    monkeypatch.setattr(execution_length, "SHORT_STEPS", 1)
    monkeypatch.setattr(execution_length, "REMAINING_STEPS", 1)
    lengths = []
    submit = engine.Synchronous.submit

    def counted(
        self: engine.Synchronous,
        step: int,
        batches: Sequence[batch_division.Batch],
        requests: frozenset[engine.StepRequest],
    ) -> Any:
        lengths.append(len(batches))
        return submit(self, step, batches, requests)

    monkeypatch.setattr(engine.Synchronous, "submit", counted)
    monkeypatch.setattr(engine.Synchronous, "prepare_executions", lambda _: can_repeat)
    fields = {"epochs": 1, "globalBatchSize": 3, "checkpoint": {"claim": "c", "everySteps": 4}}
    loop = prepared(
        job_file.TrainerSpec.model_validate(fields), ranks.feed_of(normalised.examples(), 2, 3)
    )
    dataclasses.replace(loop, observer=watcher).run()
    assert lengths == expected


def test_what_lasts_until_the_first_step_ends_with_it() -> None:
    until_first_step, steps = contextlib.ExitStack(), []
    loop = prepared(
        job_file.TrainerSpec.model_validate({"steps": 3, "globalBatchSize": 3}),
        ranks.feed_of(normalised.examples(), 2, 3),
        until_first_step=until_first_step,
    )
    until_first_step.callback(lambda: steps.append(loop.position.step))
    loop.run()
    assert steps == [1]
