"""One run of a divided model from start to end: divide it, prepare, train, leave the results."""

import contextlib
import dataclasses
import functools

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import peers
from tfparallel_trainer.comms import devices, shape, watch
from tfparallel_trainer.contract import job_file, outputs, pipeline, progress
from tfparallel_trainer.data import feed
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.split import callback_reach, placing, planned
from tfparallel_trainer.engines.split.engine import coordination, evaluation, ranks, steps
from tfparallel_trainer.engines.split.model import overrides, skeleton
from tfparallel_trainer.engines.split.pipeline import partition
from tfparallel_trainer.engines.split.planning import search_space
from tfparallel_trainer.engines.split.state import persistence
from tfparallel_trainer.keras_fit import callbacks
from tfparallel_trainer.loop import observer, training
from tfparallel_trainer.objective import checks
from tfparallel_trainer.runtime import run, settings, setup
from tfparallel_trainer.runtime.lifecycle import termination
from tfparallel_trainer.storage import folder


def train_to_end(settings: settings.Settings, process: run.Process) -> None:
    """Train the user's model in parts and leave the results in the output directory.

    Raises:
        TrainerError: the run ends early; TensorFlow's own errors are not translated here.
    """
    count = process.devices or devices.prepare(settings.cpu_devices, settings.cluster.alone)
    job_mesh = _mesh_of(settings, count)
    joined = None if process.devices else run.join(settings, process)
    process.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    names = devices.names(settings.cluster, count)
    run.compare(settings, process, names[0], count)
    with (
        contextlib.ExitStack() as ending,
        run.reporter_of(settings, process) as reporter,
        watch.peers(settings.cluster, process.give_up),
    ):
        ready, local_ranks, model_state, plan = _prepare(settings, process, job_mesh, names)
        coordinator = coordination.Coordinator(local_ranks)
        ending.push(run.leaving(settings, process, coordinator.barrier))
        split_engine = _engine(settings, process, ready, local_ranks, coordinator)
        reporter.placement = functools.partial(_placement, settings, plan, local_ranks)
        watched = dataclasses.replace(
            process,
            observe=lambda prepared: _observer(
                settings, process, prepared, local_ranks, coordinator
            ),
        )
        outer = run.loop(settings, watched, ready, reporter, split_engine)
        if settings.cluster.is_chief:
            _announce(settings, process, local_ranks, outer)
            if job_mesh.auto and plan.plan is not None:
                process.out.say("the planner's choice: " + " ".join(plan.plan.reasons))
            run.warn(settings, process, ready)
        process.stop.allow(termination.STEP_SECONDS)
        outer.run()
        process.watch.moved(f"the export of {outputs.MODEL} began")
        model_state.export(outer.position, process.out.say)
        if settings.cluster.is_chief:
            _write_pipeline(settings, plan, local_ranks)
            run.write_summary(settings, process, ready, reporter, outer.position)
        with process.watch.waiting():
            coordinator.barrier()  # nobody leaves before the chief has written everything
    del joined  # the processes are one cluster as long as it lives


def _mesh_of(settings: settings.Settings, count: int) -> job_file.Mesh:
    """The job's mesh with every axis a number; or the planner's to choose.

    Raises:
        BadConfigurationError: it does not fit the devices, or the batch does not fit it.
    """
    job_mesh = settings.job.mesh or job_file.Mesh()  # the job file is refused without it
    if job_mesh.auto:
        return job_mesh
    processes = len(settings.cluster.tasks)
    try:
        mesh = job_mesh.over(processes * count)
    except ValueError as error:
        raise errors.BadConfigurationError(
            f"{error} ({run.counted(processes, 'process')} with {run.counted(count, 'device')} "
            "each)."
        ) from error
    size = settings.job.trainer.global_batch_size
    if size < mesh.data * mesh.microbatches:
        raise errors.BadConfigurationError(
            f"trainer.globalBatchSize is {size}, and mesh.data is {mesh.data} with "
            f"{mesh.microbatches} microbatches, so that some would have no example: give at "
            f"least {mesh.data * mesh.microbatches}, or fewer microbatches."
        )
    return mesh


def _prepare(
    settings: settings.Settings, process: run.Process, job_mesh: job_file.Mesh, names: list[str]
) -> tuple[setup.Ready, ranks.Ranks, persistence.Persistence, planned.Planned]:
    """Divide the model, load the data and build what the ranks of this process have of both."""
    process.watch.moved("the preparation began")
    all_peers = peers.of(settings.cluster, names[0], process.watch)
    bare = skeleton.build(process.module, settings.job.trainer.seed)
    model = overrides.recorded(process.module, bare)
    skeleton.compile_model(process.module, bare)  # not before: it could not be recorded
    plan = planned.over(
        model,
        job_mesh,
        settings.job.trainer.global_batch_size,
        planned.devices_of(job_mesh, all_peers, len(names)),
        bare.optimizer,
    )
    planned.compare(plan, all_peers)
    planned_mesh = plan.mesh
    mesh = shape.Mesh(**planned_mesh.axes, generation=next(run.generations))
    division = setup.over(mesh, settings, len(names))
    examples, evaluation_examples = setup.examples(settings, process.module, division)
    model_partition = partition.divide(
        plan.model,
        mesh,
        planned_mesh.microbatches,
        search_space.ORDERS[planned_mesh.schedule],
        plan.ends,
    )
    model_partition = dataclasses.replace(model_partition, same_dropout=settings.same_dropout)
    first = settings.cluster.me * len(names)
    places = {first + place: name for place, name in enumerate(names)}
    local_ranks = ranks.build(process.module, bare, model_partition, places, examples)
    advice = checks.check(bare, mesh.data)
    model_state = persistence.prepare(
        settings, process.module, all_peers, local_ranks.local, process.out.say
    )
    process.watch.moved("reading the newest checkpoint began")
    ready = setup.Ready(
        mesh=mesh,
        replicas=[dataclasses.replace(one.head, advice=advice) for one in local_ranks.local],
        training=examples,
        evaluation=evaluation_examples,
        saved=model_state.saved,
        state=model_state.state,
        start=model_state.start(process.out.say),
        given_attempt=settings.attempt or 1,
    )
    return ready, local_ranks, model_state, plan


def _engine(
    settings: settings.Settings,
    process: run.Process,
    ready: setup.Ready,
    local_ranks: ranks.Ranks,
    coordinator: coordination.Coordinator,
) -> engine.Engine:
    evaluator = None
    if ready.evaluation is not None:
        evaluator = evaluation.Evaluation(process.module, local_ranks, ready.evaluation.spec)
    step = steps.TrainStep(
        process.module,
        local_ranks,
        ready.training.spec,
        settings.job.trainer.global_batch_size,
        leaves_out=settings.job.trainer.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE,
    )
    step.check(_last_batch(settings, ready.training))
    return engine.Synchronous(
        ready.replicas,
        step,
        evaluator,
        ready.evaluation,
        coordinator.metrics,
        coordinator.finite,
        coordinator.barrier,
    )


def _last_batch(settings: settings.Settings, examples: feed.Feed) -> int:
    """Examples of the smallest batch, as far as that is known before training."""
    size, steps = settings.job.trainer.global_batch_size, settings.job.trainer.steps
    whole, rest = divmod(examples.examples or 0, size)
    return rest if rest and (steps is None or steps > whole) else size


def _observer(
    settings: settings.Settings,
    process: run.Process,
    ready: setup.Ready,
    local_ranks: ranks.Ranks,
    coordinator: coordination.Coordinator,
) -> observer.Observer:
    reach = functools.partial(callback_reach.SplitReach, local_ranks, coordinator)
    return callbacks.of_module(settings, process.module, ready, reach)


def _placement(
    settings: settings.Settings, plan: planned.Planned, local_ranks: ranks.Ranks
) -> progress.Placement:
    model_partition = local_ranks.partition
    kind = tf.DeviceSpec.from_string(local_ranks.local[0].device).device_type
    return placing.describe(
        plan.mesh,
        placing.Place(model_partition.mesh, settings.cluster, kind),
        model_partition.stages,
        [model_partition.parameter_bytes(stage) for stage in model_partition.stages],
        local_ranks.watched.busy,
        plan.plan,
    )


def _write_pipeline(
    settings: settings.Settings, plan: planned.Planned, local_ranks: ranks.Ranks
) -> None:
    """Leave how the stages worked in the output directory, if this attempt has made steps."""
    if not local_ranks.watched.spans:
        return
    content = pipeline.Pipeline(
        placement=_placement(settings, plan, local_ranks),
        planned=plan.plan,
        step_seconds=local_ranks.watched.step_seconds,
        spans=local_ranks.watched.spans,
    )
    text = content.model_dump_json(by_alias=True)
    folder.Folder(settings.output_dir).write(outputs.PIPELINE, text.encode())


def _announce(
    settings: settings.Settings,
    process: run.Process,
    local_ranks: ranks.Ranks,
    outer: training.Training,
) -> None:
    model_partition, tasks = local_ranks.partition, settings.cluster.tasks
    axes = " x ".join(f"{axis} {model_partition.mesh.degree(axis)}" for axis in shape.Axis)
    process.out.say(
        f"{settings.job.strategy}: {axes} = {run.counted(model_partition.mesh.size, 'rank')} on "
        f"{run.counted(len(tasks), 'process')}; global batch "
        f"{settings.job.trainer.global_batch_size}, "
        f"{run.counted(model_partition.microbatches, 'part')} through the stages; "
        f"{outer.total_steps or 'unknown'} steps"
    )
    for stage in model_partition.stages:
        process.out.say(
            f"stage {stage.index}: {stage.nodes[0].name} to {stage.nodes[-1].name}, "
            f"{run.counted(len(stage.owned), 'variable')}"
        )
