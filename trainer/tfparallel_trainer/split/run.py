"""One run of a divided model from start to end: divide it, prepare, train, leave the results."""

import contextlib
import dataclasses
import functools

import tensorflow as tf

from tfparallel_trainer import (
    engine,
    errors,
    observer,
    run,
    settings,
    setup,
    termination,
    training,
)
from tfparallel_trainer.checkpoint import peers
from tfparallel_trainer.contract import job_file, outputs, pipeline, progress
from tfparallel_trainer.data import feed
from tfparallel_trainer.fitting import callbacks
from tfparallel_trainer.mesh import devices, shape, watch
from tfparallel_trainer.split import callbacks as divided_callbacks
from tfparallel_trainer.split import placing, planned
from tfparallel_trainer.split.engine import evaluation, ranks, steps, upkeep
from tfparallel_trainer.split.model import skeleton, wishes
from tfparallel_trainer.split.pipeline import partition
from tfparallel_trainer.split.planning import settings as planner
from tfparallel_trainer.split.state import keeping
from tfparallel_trainer.step import checks
from tfparallel_trainer.storage import folder


def train_to_end(settings: settings.Settings, process: run.Process) -> None:
    """Train the user's model in parts and leave the results in the output directory.

    Raises:
        TrainerError: the run ends early; TensorFlow's own errors are not translated here.
    """
    count = process.devices or devices.prepare(settings.cpu_devices, settings.cluster.alone)
    asked = _wanted(settings, count)
    held = None if process.devices else run.join(settings, process)
    process.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    names = devices.names(settings.cluster, count)
    run.compare(settings, process, names[0], count)
    with (
        contextlib.ExitStack() as ending,
        run.reporter_of(settings, process) as reporter,
        watch.peers(settings.cluster, process.give_up),
    ):
        ready, own, kept, found = _prepare(settings, process, asked, names)
        together = upkeep.Coordinator(own)
        ending.push(run.leaving(settings, process, together.barrier))
        made = _engine(settings, process, ready, own, together)
        reporter.placement = functools.partial(_placement, settings, found, own)
        watched = dataclasses.replace(
            process, observe=lambda found: _observer(settings, process, found, own, together)
        )
        outer = run.loop(settings, watched, ready, reporter, made)
        if settings.cluster.is_chief:
            _announce(settings, process, own, outer)
            if asked.auto and found.made is not None:
                process.out.say("the planner's choice: " + " ".join(found.made.reasons))
            run.warn(settings, process, ready)
        process.stop.allow(termination.STEP_SECONDS)
        outer.run()
        process.watch.moved(f"the export of {outputs.MODEL} began")
        kept.export(outer.position, process.out.say)
        if settings.cluster.is_chief:
            _write_pipeline(settings, found, own)
            run.write_summary(settings, process, ready, reporter, outer.position)
        with process.watch.waiting():
            together.barrier()  # nobody leaves before the chief has written everything
    del held  # the processes are one cluster as long as it lives


def _wanted(given: settings.Settings, count: int) -> job_file.Mesh:
    """The job's mesh with every axis a number; or the planner's to choose.

    Raises:
        BadConfigurationError: it does not fit the devices, or the batch does not fit it.
    """
    asked = given.job.mesh or job_file.Mesh()  # the job file is refused without it
    if asked.auto:
        return asked
    processes = len(given.cluster.tasks)
    try:
        wanted = asked.over(processes * count)
    except ValueError as error:
        raise errors.BadConfigurationError(
            f"{error} ({run.counted(processes, 'process')} with {run.counted(count, 'device')} "
            "each)."
        ) from error
    size = given.job.trainer.global_batch_size
    if size < wanted.data * wanted.microbatches:
        raise errors.BadConfigurationError(
            f"trainer.globalBatchSize is {size}, and mesh.data is {wanted.data} with "
            f"{wanted.microbatches} microbatches, so that some would have no example: give at "
            f"least {wanted.data * wanted.microbatches}, or fewer microbatches."
        )
    return wanted


def _prepare(
    given: settings.Settings, process: run.Process, asked: job_file.Mesh, names: list[str]
) -> tuple[setup.Ready, ranks.Ranks, keeping.Persistence, planned.Planned]:
    """Divide the model, load the data and build what the ranks of this process have of both."""
    process.watch.moved("the preparation began")
    together = peers.of(given.cluster, names[0], process.watch)
    bare = skeleton.build(process.module, given.job.trainer.seed)
    model = wishes.recorded(process.module, bare)
    skeleton.compile_model(process.module, bare)  # not before: it could not be recorded
    found = planned.over(
        model,
        asked,
        given.job.trainer.global_batch_size,
        planned.devices_of(asked, together, len(names)),
        bare.optimizer,
    )
    planned.compare(found, together)
    wanted = found.mesh
    mesh = shape.Mesh(**wanted.axes, generation=next(run.generations))
    division = setup.over(mesh, given, len(names))
    examples, looked_at = setup.examples(given, process.module, division)
    divided = partition.divide(
        found.model, mesh, wanted.microbatches, planner.ORDERS[wanted.schedule], found.ends
    )
    divided = dataclasses.replace(divided, same_dropout=given.same_dropout)
    first = given.cluster.me * len(names)
    places = {first + place: name for place, name in enumerate(names)}
    own = ranks.build(process.module, bare, divided, places, examples)
    advice = checks.check(bare, mesh.data)
    kept = keeping.prepare(given, process.module, together, own.local, process.out.say)
    process.watch.moved("reading the newest checkpoint began")
    ready = setup.Ready(
        mesh=mesh,
        replicas=[dataclasses.replace(one.head, advice=advice) for one in own.local],
        training=examples,
        evaluation=looked_at,
        saved=kept.saved,
        state=kept.state,
        start=kept.start(process.out.say),
        given_attempt=given.attempt or 1,
    )
    return ready, own, kept, found


def _engine(
    given: settings.Settings,
    process: run.Process,
    ready: setup.Ready,
    own: ranks.Ranks,
    together: upkeep.Coordinator,
) -> engine.Engine:
    evaluator = None
    if ready.evaluation is not None:
        evaluator = evaluation.Evaluation(process.module, own, ready.evaluation.spec)
    step = steps.TrainStep(
        process.module,
        own,
        ready.training.spec,
        given.job.trainer.global_batch_size,
        leaves_out=given.job.trainer.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE,
    )
    step.check(_last_batch(given, ready.training))
    return engine.Synchronous(
        ready.replicas,
        step,
        evaluator,
        ready.evaluation,
        together.metrics,
        together.finite,
        together.barrier,
    )


def _last_batch(given: settings.Settings, examples: feed.Feed) -> int:
    """Examples of the smallest batch, as far as that is known before training."""
    size, steps = given.job.trainer.global_batch_size, given.job.trainer.steps
    whole, rest = divmod(examples.examples or 0, size)
    return rest if rest and (steps is None or steps > whole) else size


def _observer(
    given: settings.Settings,
    process: run.Process,
    ready: setup.Ready,
    own: ranks.Ranks,
    together: upkeep.Coordinator,
) -> observer.Observer:
    reach = functools.partial(divided_callbacks.Divided, own, together)
    return callbacks.of_module(given, process.module, ready, reach)


def _placement(
    given: settings.Settings, found: planned.Planned, own: ranks.Ranks
) -> progress.Placement:
    divided = own.partition
    kind = tf.DeviceSpec.from_string(own.local[0].device).device_type
    return placing.describe(
        found.mesh,
        placing.Place(divided.mesh, given.cluster, kind),
        divided.stages,
        [divided.parameter_bytes(stage) for stage in divided.stages],
        own.watched.busy,
        found.made,
    )


def _write_pipeline(given: settings.Settings, found: planned.Planned, own: ranks.Ranks) -> None:
    """Leave how the stages worked in the output directory, if this attempt has made steps."""
    if not own.watched.spans:
        return
    content = pipeline.Pipeline(
        placement=_placement(given, found, own),
        planned=found.made,
        step_seconds=own.watched.step_seconds,
        spans=own.watched.spans,
    )
    text = content.model_dump_json(by_alias=True)
    folder.Folder(given.output_dir).write(outputs.PIPELINE, text.encode())


def _announce(
    given: settings.Settings, process: run.Process, own: ranks.Ranks, outer: training.Training
) -> None:
    divided, tasks = own.partition, given.cluster.tasks
    axes = " x ".join(f"{axis} {divided.mesh.degree(axis)}" for axis in shape.Axis)
    process.out.say(
        f"{given.job.strategy}: {axes} = {run.counted(divided.mesh.size, 'rank')} on "
        f"{run.counted(len(tasks), 'process')}; global batch "
        f"{given.job.trainer.global_batch_size}, {run.counted(divided.microbatches, 'part')} "
        f"through the stages; {outer.total_steps or 'unknown'} steps"
    )
    for stage in divided.stages:
        process.out.say(
            f"stage {stage.index}: {stage.nodes[0].name} to {stage.nodes[-1].name}, "
            f"{run.counted(len(stage.owned), 'variable')}"
        )
