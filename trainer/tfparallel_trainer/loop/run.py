"""Every run from start to end: connect, prepare, train, finish.

What differs between engines is in `engines.engine.RunTemplate`.
"""

import contextlib
import functools
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import export, files
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.engines import engine, setup
from tfparallel_trainer.lifecycle import farewells, termination
from tfparallel_trainer.loop import (
    checkpoint_writer,
    exit_report,
    observer,
    quick_start,
    state_copier,
    training,
)
from tfparallel_trainer.reporting import (
    console,
    progress_pusher,
    records,
    reports,
    results,
    run_seconds,
)
from tfparallel_trainer.storage import durable, folder

Observe = Callable[[setup.EngineSetup], observer.Observer]
"""Gives the observer of a run."""

_FAREWELL_SECONDS = 10.0
"""How long a process that ends at once waits for the checkpoint that it writes."""


def train_to_end(template: engine.RunTemplate, observe: Observe) -> None:
    """Train the user's model and leave the results in the output directory.

    A run that ends early raises a TrainerError, or an error of TensorFlow's as it is.
    """
    context = template.context
    chief = context.settings.cluster.is_chief
    with (
        context.until_end,
        context.until_first_step,
        template.connect(),
        _leaving(template),
        _reporter(context) as reporter,
        template.watch_peers(),
        exit_report.locating_timeouts(context.watch),
    ):
        quick_start.collect_rarely(context.until_first_step)
        engine_setup = template.prepare()
        trainer = template.build_engine(engine_setup)
        reporter.placement = engine_setup.placement
        reporter.wait = engine_setup.training.wait
        reporter.start = lambda: _start(context, engine_setup)
        with _checkpoint_writer(context, engine_setup) as writer:
            outer = _loop(context, engine_setup, trainer, reporter, observe, writer)
            if chief:
                _announce(template, engine_setup, outer.total_steps)
                reporter.starts(engine_setup.start.step)
            context.stop.allow(termination.STEP_SECONDS)
            outer.run()
        if not context.script:
            _export(context, engine_setup, outer.position)
            if chief:
                _write_summary(context, engine_setup, reporter, outer.position)
        with context.watch.waiting():
            trainer.barrier()  # nobody leaves before the chief has written everything


@contextlib.contextmanager
def _reporter(context: setup.RunContext) -> Iterator[reports.Reporter]:
    """Open the outlets of this process while the body runs."""
    settings = context.settings
    chief = settings.cluster.is_chief
    written = None
    if chief and context.logs:
        written = records.RunRecords(settings.output_dir, settings.results)
    pusher = progress_pusher.Pusher(settings.progress if chief else None, context.out.say)
    seconds = progress_pusher.END_SECONDS
    try:
        yield reports.Reporter(
            context.out,
            written,
            pusher,
            lambda: results.metrics(settings),
            chief=chief,
            lines=not context.script,  # its callbacks write for people
            times=run_seconds.RunTimes(0 if written is None else written.recorded_step),
            epochs=settings.job.trainer.epochs if settings.job.trainer.steps is None else None,
        )
        seconds = progress_pusher.PATIENT_SECONDS
    finally:
        with context.watch.waiting("the last report of progress"):
            pusher.close(seconds)
        if written is not None:
            written.close()


def _loop(
    context: setup.RunContext,
    engine_setup: setup.EngineSetup,
    trainer: engine.Engine,
    reporter: reports.Reporter,
    observe: Observe,
    writer: checkpoint_writer.CheckpointWriter,
) -> training.Training:
    """Put together the outer loop around an engine."""
    settings = context.settings

    copy, memory = engine_setup.reserve_memory(), engine_setup.memory
    copier = state_copier.StateCopier(
        copy,
        exchange=memory.exchange if memory is not None else lambda: None,
        decides=copy is not None and settings.cluster.is_chief,
        barrier=trainer.barrier if memory is not None and memory.has_peers else lambda: None,
    )

    def save(at: files.Position) -> None:
        began = time.monotonic()
        writer.wait()  # memory has room for one copy
        copier.wait()
        state_copy = engine_setup.copy_state(at)
        if state_copy is None:
            return
        if state_copy.complete is not None:
            copier.complete(state_copy.complete)
        reporter.flush()  # not in the background: callbacks may write these files
        copied = time.monotonic()

        def write() -> None:
            with context.stop.saving():
                state_copy.save()
            reporter.event(
                outputs.TrainEvent.CHECKPOINT,
                at.step,
                seconds=round(copied - began, 3),
                writeSeconds=round(time.monotonic() - copied, 3),
            )

        writer.start(write)

    if settings.logs_steps and settings.cluster.is_chief:
        weights = engine_setup.replicas[0].model.trainable_variables
        reporter.step_log = records.StepLog(settings.output_dir, weights)
    spec = settings.job.trainer
    return training.Training(
        spec=spec,
        examples=engine_setup.training,
        engine=trainer,
        reporter=reporter,
        termination=context.stop,
        watch=context.watch,
        schedule=training.CheckpointSchedule(spec.checkpoint, settings.cluster.is_chief),
        save=save,
        writer=writer,
        copier=copier,
        observer=observe(engine_setup),
        start=engine_setup.start,
        saved_step=engine_setup.saved_step,
        until_first_step=context.until_first_step,
    )


@contextlib.contextmanager
def _checkpoint_writer(
    context: setup.RunContext, engine_setup: setup.EngineSetup
) -> Iterator[checkpoint_writer.CheckpointWriter]:
    """Let what is being written come to its end, however the body or the process ends."""
    has_parts = _has_parts(engine_setup)
    writer = checkpoint_writer.CheckpointWriter(
        context.watch.waiting if has_parts else contextlib.nullcontext
    )
    with contextlib.ExitStack() as stack:
        if not has_parts:  # parts of a process that is lost never come
            farewell = functools.partial(writer.join, _FAREWELL_SECONDS)
            stack.enter_context(farewells.before_end(farewell))
        try:
            yield writer
        finally:
            writer.join()
            if writer.error is not None:
                context.out.say(f"warning: {writer.error}")


def _has_parts(engine_setup: setup.EngineSetup) -> bool:
    """Whether several processes have parts of the state."""
    return engine_setup.saved is not None and engine_setup.saved.has_parts


def _start(context: setup.RunContext, engine_setup: setup.EngineSetup) -> Mapping[str, Any]:
    """What the record of the first step says of this process."""
    return {
        "attempt": engine_setup.attempt,
        "seconds": round(time.monotonic() - context.started, 3),
        "versions": {
            "TensorFlow": tf.__version__,
            "Keras": keras.__version__,
            "Python": platform.python_version(),
        },
    }


def _announce(
    template: engine.RunTemplate, engine_setup: setup.EngineSetup, steps: int | None
) -> None:
    """Say what is trained where, and what may surprise people about it."""
    context = template.context
    for sentence in template.describe(steps):
        context.out.say(sentence)
    for sentence in (*context.module.hints.values(), *engine_setup.advice):
        context.out.say(f"warning: {sentence}")
    if context.settings.job.trainer.checkpoint is None and not context.script:
        context.out.say("warning: without trainer.checkpoint a restart begins at step 0")


def _export(context: setup.RunContext, engine_setup: setup.EngineSetup, at: files.Position) -> None:
    """Leave the trained model in the output directory."""
    settings, path = context.settings, context.module.path
    if engine_setup.export is None and not settings.cluster.is_chief:
        return
    context.watch.moved(f"the export of {outputs.MODEL} began")
    if engine_setup.export is not None:
        engine_setup.export(at)
        return
    _check_owner(engine_setup)
    model = engine_setup.replicas[0].model
    export.save(model, settings.output_dir / outputs.MODEL, path)
    if settings.job.trainer.saved_model:
        context.watch.moved(f"the export of {outputs.SAVED_MODEL} began")
        export.save_for_serving(model, settings.output_dir / outputs.SAVED_MODEL, path)


def _check_owner(engine_setup: setup.EngineSetup) -> None:
    """Leave no results (PreemptedError) where another process has taken the place for them."""
    if engine_setup.saved is not None:
        engine_setup.saved.check_owner()


def _write_summary(
    context: setup.RunContext,
    engine_setup: setup.EngineSetup,
    reporter: reports.Reporter,
    position: files.Position,
) -> None:
    """Leave the summary in the output directory, which says that all is done."""
    settings = context.settings
    context.watch.moved("the export ended")
    if settings.job.evaluator:
        results.wait_for(position.step, settings, context.out.say, context.watch.moved)
        reporter.evaluated(position.step, position.epoch)
    duration = time.monotonic() - context.started
    summary = outputs.Summary(
        done=True,
        job_digest=settings.digest,
        job_uid=settings.job_uid,
        module_digest=settings.module_digest,
        steps=position.step,
        epochs=position.epoch,
        attempt=engine_setup.attempt,
        duration_seconds=round(duration, 3),
        metrics={name: outputs.number(value) for name, value in reporter.metrics.items()},
        steps_by_worker=engine_setup.steps_by_worker,
    )
    _check_owner(engine_setup)
    reporter.event(outputs.TrainEvent.DONE, position.step)
    reporter.flush()
    content = summary.model_dump_json(by_alias=True, exclude_none=True)
    durable.sync(settings.output_dir, but=(outputs.CHECKPOINTS,))  # they are on the disk
    folder.Folder(settings.output_dir).write(outputs.SUMMARY, content.encode())
    reporter.flush()  # the last file: it says that the others are in place
    context.out.say(
        f"done after {position.step} steps in {duration:.1f} s: {console.metrics(reporter.metrics)}"
    )
    if reporter.verified_steps is not None:
        context.out.say(reporter.verified_steps.sentence)


@contextlib.contextmanager
def _leaving(template: engine.RunTemplate) -> Iterator[None]:
    """If all processes end the same way, leave together.

    An early exit would look like a lost peer to a process that still receives from this one.
    """
    alike = False
    try:
        yield
        alike = True
    except errors.TrainerError as error:
        alike = error.everywhere
        raise
    finally:
        if alike and template.barrier is not None and not template.context.settings.cluster.alone:
            # A peer that leaves first breaks this wait, and has seen the end of all work before.
            with template.context.watch.waiting(), contextlib.suppress(tf.errors.OpError):
                template.barrier()
