"""The course of a run whose model is divided over ranks."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import agreement, devices, shape
from tfparallel_trainer.contract import job_file, outputs, plan, progress
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines import engine, model_agreement, setup
from tfparallel_trainer.engines.split import callback_model, placement_report, plan_resolution
from tfparallel_trainer.engines.split.execution import captures, pipeline_steps, ranks
from tfparallel_trainer.engines.split.model import skeleton
from tfparallel_trainer.engines.split.pipeline import partition
from tfparallel_trainer.engines.split.planning import search_space
from tfparallel_trainer.engines.split.referee import single_process, split_referee, step_trial
from tfparallel_trainer.engines.split.state import persistence
from tfparallel_trainer.objective import checks, independence, likeness, replica
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console
from tfparallel_trainer.storage import folder


class SplitRun(engine.RunTemplate):
    """Ranks have parts of the model."""

    @contextlib.contextmanager
    def connect(self) -> Iterator[None]:
        """Be one cluster with all peers."""
        count = self.context.count_devices()
        self._job_mesh = _mesh_of(self.context.settings, count)
        with self.context.join_cluster(count) as self._devices:
            yield

    def prepare(self) -> setup.EngineSetup:
        """Divide the model, and build what the ranks of this process have of it."""
        context = self.context
        settings, module = context.settings, context.module
        context.watch.moved("the preparation began")
        all_peers = agreement.peers(settings.cluster, self._devices[0], context.watch)
        bare = skeleton.build(module, settings.job.trainer.seed)
        model_partition = self._divide(bare, all_peers)
        mesh = model_partition.mesh
        division = setup.division_for(mesh, settings, len(self._devices))
        examples, evaluation_examples = setup.examples(settings, module, division)
        self._single = self._build_single(bare, examples)
        places = dict(enumerate(self._devices, settings.cluster.me * len(self._devices)))
        self._ranks = ranks.build(module, bare, model_partition, places, examples)
        checks.check(bare)
        with context.watch.waiting("the wait for another job's end"):
            model_state = self._model_state = persistence.Persistence(
                settings,
                module,
                all_peers,
                self._ranks.local,
                context.out.say,
                context.memory_files,
            )
        self._compare_models(
            bare, examples.spec
        )  # the user's functions have now bound the last model
        saved = model_state.saved
        if saved is not None:
            context.until_end.enter_context(saved.living())
        context.watch.moved("reading the newest checkpoint began")
        self.barrier = self._ranks.barrier

        def export(at: files.Position) -> None:
            model_state.export(at)
            if settings.cluster.is_chief:
                self._write_pipeline()

        return setup.EngineSetup(
            replicas=[rank.head for rank in self._ranks.local],
            training=examples,
            evaluation=evaluation_examples,
            saved=saved,
            state=model_state.state,
            memory=model_state.memory,
            start=model_state.start(),
            saved_step=0 if saved is None else saved.saved_step,
            attempt=saved.attempt if saved is not None else settings.attempt or 1,
            advice=[*checks.advice(bare, mesh.data), *self._warn_of_memory()],
            export=export,
            build_model_access=functools.partial(callback_model.SplitModelAccess, self._ranks),
            placement=self._placement,
        )

    def _compare_models(self, bare: Any, spec: Any) -> None:
        """Find closures of ranks, and refuse models that differ between processes."""
        cluster, layers = self.context.settings.cluster, likeness.describe(bare)
        models = [layers | trace for trace in captures.find(self._ranks, spec)]
        with self.context.watch.waiting():
            model_agreement.check(cluster, self._devices[0], (models, []), model_agreement.ALIKE)

    def _divide(self, bare: Any, peers: agreement.Peers) -> partition.Partition:
        """Divide the model as the job says, or as the planner chooses."""
        context = self.context
        model = skeleton.recorded(context.module, bare)
        skeleton.compile_model(context.module, bare)  # not before: it could not be recorded
        self._plan = plan_resolution.resolve(
            model,
            self._job_mesh,
            context.settings.job.trainer.global_batch_size,
            plan_resolution.devices_of(peers, len(self._devices)),
            bare.optimizer,
            bare.loss,
        )
        plan_resolution.compare(self._plan, peers)
        divided = partition.divide(
            self._plan.model,
            context.mesh(**self._plan.mesh.axes),
            self._plan.mesh.microbatches,
            search_space.ORDERS[self._plan.mesh.schedule],
            self._plan.ends,
            shardings=self._plan.shardings,
        )
        return dataclasses.replace(
            divided,
            same_dropout=context.settings.same_dropout,
            shards_optimizer=self._plan.mesh.shard_optimizer,
            segment_ends=self._plan.segment_ends,
        )

    def build_engine(self, engine_setup: setup.EngineSetup) -> engine.Engine:
        """Build the pipeline's step, and its comparison with one process."""
        module, spec = self.context.module, self.context.settings.job.trainer
        state = self._model_state
        evaluator = None
        if engine_setup.evaluation is not None:
            evaluator = pipeline_steps.PipelineEvaluator(
                module, self._ranks, engine_setup.evaluation.spec
            )
        step = pipeline_steps.PipelineTrainStep(
            module,
            self._ranks,
            engine_setup.training.spec,
            spec.global_batch_size,
            leaves_out=spec.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE,
            targets=engine_setup.training.targets(independence.POOL),
        )
        step.check_size(_last_batch(spec, engine_setup.training))
        if spec.verify is not job_file.Verify.OFF:
            trials = step_trial.Trials(self._ranks, step, state.state, engine_setup.training.spec)
            step.referee = split_referee.SplitReferee(
                self._ranks,
                trials,
                functools.partial(
                    single_process.judge,
                    self._single,
                    engine_setup.training.spec,
                    state.drawn.slots,
                ),
                always=spec.verify is job_file.Verify.ALWAYS,
            )
        return pipeline_steps.PipelineEngine(self._ranks, step, evaluator, engine_setup.evaluation)

    def _build_single(
        self, bare: Any, examples: batch_division.BatchSource
    ) -> replica.Replica | str:
        """Build the model of one process, on the first process, to compare steps with it.

        It is built before the ranks' heads, so that the user's functions stay bound to those.
        Returns why it does not exist, if so.
        """
        settings = self.context.settings
        trainer = settings.job.trainer
        if trainer.verify is job_file.Verify.OFF or not settings.cluster.is_chief:
            return "the first process compares steps"
        if obstacle := single_process.find_obstacle(bare.count_params()):
            return obstacle
        processor = devices.cpu_beside(self._devices[0])
        mesh, sample = self.context.mesh(), examples.sample()
        return single_process.build(self.context.module, mesh, processor, trainer.seed, sample)

    def describe(self, total: int | None) -> Iterator[str]:
        """The axes of the mesh, the stages, and why the planner chose them."""
        settings, divided = self.context.settings, self._ranks.partition
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
        if self._job_mesh.shard_optimizer or self._plan.mesh.shard_optimizer:
            yield f"mesh.shardOptimizer {self._describe_state()}"
        if divided.segment_ends is not None:
            counts = [len(divided.segments(stage)) for stage in divided.stages]
            yield (
                "mesh.recompute lets backward passes compute the activations of "
                f"{' + '.join(map(str, counts))} segments again"
            )
        if self._job_mesh.auto and self._plan.plan is not None:
            yield "the planner's choice: " + " ".join(self._plan.plan.reasons)

    def _describe_state(self) -> str:
        """The optimizer state that a rank keeps, or why it keeps all."""
        divided, rank = self._ranks.partition, self._ranks.local[0]
        if divided.mesh.data == 1:
            return "has no effect, because mesh.data is 1"
        if not divided.shards_optimizer:
            kind = type(rank.optimizer.keras_optimizer).__name__
            return f"has no effect, because {kind} keeps no state of a weight"
        size = progress.format_bytes(rank.optimizer.state_bytes)
        return f"divides the optimizer's state by {divided.mesh.data}: rank {rank.index} has {size}"

    def _warn_of_memory(self) -> Iterator[str]:
        """Say that the model does not fit the devices, by the planner's estimate."""
        memory = self._placement().exceeded_memory
        if memory is not None:
            yield f"{memory.problem}. {memory.remedy}"

    def _placement(self) -> progress.Placement:
        divided = self._ranks.partition
        kind = tf.DeviceSpec.from_string(self._ranks.local[0].device).device_type
        placement = placement_report.describe(
            self._plan.mesh,
            placement_report.Place(divided.mesh, self.context.settings.cluster, kind),
            divided.stages,
            [divided.parameter_bytes(stage) for stage in divided.stages],
            self._ranks.timing.busy,
            self._plan.plan,
        )
        return placement.model_copy(update={"memory": self._plan.memory})

    def _write_pipeline(self) -> None:
        """Write the work of the stages to the output directory, if this attempt has made steps."""
        timing = self._ranks.timing
        if not timing.spans:
            return
        content = plan.Pipeline(
            placement=self._placement(),
            planned=self._plan.plan,
            step_seconds=timing.step_seconds,
            spans=timing.spans,
        )
        text = content.model_dump_json(by_alias=True)
        folder.Folder(self.context.settings.output_dir).write(outputs.PIPELINE, text.encode())


def _mesh_of(settings: Settings, count: int) -> job_file.Mesh:
    """The job's mesh with numbers that fit devices and batch, or `auto` for the planner."""
    job_mesh = settings.job.mesh or job_file.Mesh()  # a job file without a mesh is refused
    if job_mesh.auto:
        return job_mesh
    processes = len(settings.cluster.tasks)
    try:
        mesh = job_mesh.for_devices(processes * count)
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


def _last_batch(spec: job_file.TrainerSpec, examples: batch_division.BatchSource) -> int:
    """Number of examples of the smallest batch, if known before training."""
    whole, remainder = divmod(examples.examples or 0, spec.global_batch_size)
    return (
        remainder
        if remainder and (spec.steps is None or spec.steps > whole)
        else spec.global_batch_size
    )
