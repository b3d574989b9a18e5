"""The course of a run whose model is divided over ranks."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import agreement, shape
from tfparallel_trainer.contract import job_file, outputs, plan, progress
from tfparallel_trainer.data import batching
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.split import callback_reach, placing, planned
from tfparallel_trainer.engines.split.engine import coordination, ranks, steps
from tfparallel_trainer.engines.split.model import skeleton
from tfparallel_trainer.engines.split.pipeline import partition
from tfparallel_trainer.engines.split.planning import search_space
from tfparallel_trainer.engines.split.state import persistence
from tfparallel_trainer.objective import checks
from tfparallel_trainer.runtime import context, settings, setup
from tfparallel_trainer.runtime.reporting import console
from tfparallel_trainer.storage import folder


class Course(engine.Course):
    """Ranks have parts of the model."""

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Be one cluster with all peers."""
        count = self.context.count_devices()
        self._job_mesh = _mesh_of(self.context.settings, count)
        with self.context.joined(count) as self._devices:
            yield

    def prepared(self, leave: Callable[[Callable[[], None]], None]) -> engine.Prepared:
        """Divide the model, and build what the ranks of this process have of it."""
        context = self.context
        ready, local_ranks, model_state, plan = _divide(context, self._job_mesh, self._devices)
        coordinator = coordination.Coordinator(local_ranks)
        leave(coordinator.barrier)

        def export(at: files.Position) -> None:
            model_state.export(at)
            if context.settings.cluster.is_chief:
                _write_pipeline(context.settings, plan, local_ranks)

        return engine.Prepared(
            ready=ready,
            engine=_engine(context, ready, local_ranks, coordinator),
            announce=functools.partial(self._announce, plan, local_ranks.partition),
            export=export,
            build_reach=functools.partial(callback_reach.SplitReach, local_ranks, coordinator),
            placement=functools.partial(_placement, context.settings, plan, local_ranks),
        )

    def _announce(
        self, plan: planned.Planned, divided: partition.Partition, total: int | None
    ) -> Iterator[str]:
        settings = self.context.settings
        axes = " x ".join(f"{axis} {divided.mesh.degree(axis)}" for axis in shape.Axis)
        yield (
            f"{settings.job.strategy}: {axes} = {console.counted(divided.mesh.size, 'rank')} on "
            f"{console.counted(len(settings.cluster.tasks), 'process')}; global batch "
            f"{settings.job.trainer.global_batch_size}, "
            f"{console.counted(divided.microbatches, 'part')} through the stages; "
            f"{total or 'unknown'} steps"
        )
        for stage in divided.stages:
            yield (
                f"stage {stage.index}: {stage.nodes[0].name} to {stage.nodes[-1].name}, "
                f"{console.counted(len(stage.owned), 'variable')}"
            )
        if self._job_mesh.auto and plan.plan is not None:
            yield "the planner's choice: " + " ".join(plan.plan.reasons)


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
            f"{error} ({console.counted(processes, 'process')} with "
            f"{console.counted(count, 'device')} each)."
        ) from error
    size = settings.job.trainer.global_batch_size
    if size < mesh.data * mesh.microbatches:
        raise errors.BadConfigurationError(
            f"trainer.globalBatchSize is {size}, and mesh.data is {mesh.data} with "
            f"{mesh.microbatches} microbatches, so that some would have no example: give at "
            f"least {mesh.data * mesh.microbatches}, or fewer microbatches."
        )
    return mesh


def _divide(
    context: context.RunContext, job_mesh: job_file.Mesh, names: list[str]
) -> tuple[setup.Ready, ranks.Ranks, persistence.Persistence, planned.Planned]:
    """Divide the model, load the data and build what the ranks of this process have of both."""
    settings, module = context.settings, context.module
    context.watch.moved("the preparation began")
    all_peers = agreement.peers(settings.cluster, names[0], context.watch)
    bare = skeleton.build(module, settings.job.trainer.seed)
    model = skeleton.recorded(module, bare)
    skeleton.compile_model(module, bare)  # not before: it could not be recorded
    plan = planned.over(
        model,
        job_mesh,
        settings.job.trainer.global_batch_size,
        planned.devices_of(job_mesh, all_peers, len(names)),
        bare.optimizer,
    )
    planned.compare(plan, all_peers)
    planned_mesh = plan.mesh
    mesh = context.mesh(**planned_mesh.axes)
    division = setup.over(mesh, settings, len(names))
    examples, evaluation_examples = setup.examples(settings, module, division)
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
    local_ranks = ranks.build(module, bare, model_partition, places, examples)
    advice = checks.check(bare, mesh.data)
    model_state = persistence.prepare(
        settings, module, all_peers, local_ranks.local, context.out.say
    )
    context.watch.moved("reading the newest checkpoint began")
    ready = setup.Ready(
        mesh=mesh,
        replicas=[dataclasses.replace(one.head, advice=advice) for one in local_ranks.local],
        training=examples,
        evaluation=evaluation_examples,
        saved=model_state.saved,
        state=model_state.state,
        start=model_state.start(),
        given_attempt=settings.attempt or 1,
    )
    return ready, local_ranks, model_state, plan


def _engine(
    context: context.RunContext,
    ready: setup.Ready,
    local_ranks: ranks.Ranks,
    coordinator: coordination.Coordinator,
) -> engine.Engine:
    module, evaluator = context.module, None
    spec = context.settings.job.trainer
    if ready.evaluation is not None:
        evaluator = steps.Evaluation(module, local_ranks, ready.evaluation.spec, coordinator)
    step = steps.TrainStep(
        module,
        local_ranks,
        ready.training.spec,
        spec.global_batch_size,
        leaves_out=spec.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE,
    )
    step.check_size(_last_batch(context.settings, ready.training))
    return engine.Synchronous(
        ready.replicas,
        step,
        evaluator,
        ready.evaluation,
        coordinator.metrics,
        coordinator.finite,
        coordinator.barrier,
    )


def _last_batch(settings: settings.Settings, examples: batching.Source) -> int:
    """Examples of the smallest batch, as far as that is known before training."""
    size, steps = settings.job.trainer.global_batch_size, settings.job.trainer.steps
    whole, rest = divmod(examples.examples or 0, size)
    return rest if rest and (steps is None or steps > whole) else size


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
    settings: settings.Settings, divided: planned.Planned, local_ranks: ranks.Ranks
) -> None:
    """Leave how the stages worked in the output directory, if this attempt has made steps."""
    if not local_ranks.watched.spans:
        return
    content = plan.Pipeline(
        placement=_placement(settings, divided, local_ranks),
        planned=divided.plan,
        step_seconds=local_ranks.watched.step_seconds,
        spans=local_ranks.watched.spans,
    )
    text = content.model_dump_json(by_alias=True)
    folder.Folder(settings.output_dir).write(outputs.PIPELINE, text.encode())
