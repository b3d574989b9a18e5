"""The course of a run under a strategy: what the user's module builds, or TensorFlow's for TPUs."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, tasks, user
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import cluster, devices, rendezvous, shape, tpu_name
from tfparallel_trainer.contract import job_file, user_module
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines import engine, model_agreement, setup
from tfparallel_trainer.engines.strategy import strategy_steps
from tfparallel_trainer.objective import checks, independence, likeness, tracing
from tfparallel_trainer.process_settings import Settings

_TPU_START_SECONDS = 600
"""Seconds that the initialisation of a TPU may take."""


class StrategyRun(engine.RunTemplate):
    """A strategy places the model."""

    @contextlib.contextmanager
    def connect(self) -> Iterator[None]:
        """Build the strategy, which starts TensorFlow's cluster."""
        context, settings = self.context, self.context.settings
        count = context.count_devices()
        limit = settings.job.trainer.start_timeout_seconds
        with context.watch.waiting():
            connections = rendezvous.meet(settings.cluster, limit, context.out.say)
            self._strategy = _build(context, connections)
        context.stop.install()  # TensorFlow replaces the handler when it starts a cluster
        self._local_ranks = strategy_steps.ranks_of_process(self._strategy)
        _check_places(settings, self._strategy, self._local_ranks)
        self._device = devices.names(settings.cluster, count)[0]
        context.check_same_everywhere(self._device, count)
        connections.close()  # TensorFlow has started in all processes
        yield

    def prepare(self) -> setup.EngineSetup:
        """Build the model within the strategy's scope."""
        context, strategy = self.context, self._strategy
        size, ranks = context.settings.job.trainer.global_batch_size, strategy.num_replicas_in_sync
        division = batch_division.BatchSharding(
            batch_size=size, ranks=ranks, local_ranks=self._local_ranks
        )
        engine_setup = setup.prepare(context, shape.MeshShape(), [""], strategy.scope, division)
        (built,) = engine_setup.replicas
        for phase in built.computations:
            check_optimizer(phase.optimizer)
        setup.check_export(context, built.model)
        traced = self._traced = strategy_steps.ReplicatedModel(strategy, context.module, built)
        if self._compares_models(traced):
            self._compare_models(traced, engine_setup.training.spec)
        start = engine_setup.start
        with context.watch.waiting():
            step, epoch, example, saved_step = traced.share_state(
                [start.step, start.epoch, start.example, engine_setup.saved_step]
            )
        position = files.Position(step=step, epoch=epoch, example=example, observer=start.observer)
        self.barrier = traced.barrier
        return dataclasses.replace(engine_setup, start=position, saved_step=saved_step)

    def build_engine(self, engine_setup: setup.EngineSetup) -> engine.Engine:
        """Build the steps. The first call of each traces it."""
        settings, traced, evaluator = self.context.settings, self._traced, None
        omitted: list[str] = []
        if settings.job.trainer.verify is not job_file.Verify.OFF:
            processes = len(settings.cluster.tasks)
            compares_models = self._compares_models(traced)
            omitted = omissions(settings.job.strategy, processes, compares_models=compares_models)
        if engine_setup.evaluation is not None:
            evaluator = strategy_steps.StrategyEvaluator(traced, engine_setup.evaluation.spec)
        step = strategy_steps.StrategyTrainStep(
            traced,
            engine_setup.training.spec,
            engine_setup.training.targets(independence.POOL),
            omitted=omitted,
        )
        return strategy_steps.StrategyEngine(traced, step, evaluator, engine_setup.evaluation)

    def _compares_models(self, traced: strategy_steps.ReplicatedModel) -> bool:
        """Whether processes can compare their models. TPUs keep variables differently."""
        is_stateful = bool(checks.find_stateful(traced.replica.model))
        return traced.replicas > 1 and not self.context.settings.uses_tpu and not is_stateful

    def _compare_models(self, traced: strategy_steps.ReplicatedModel, spec: Any) -> None:
        """Refuse (UserCodeError) processes whose layers differ, or variables outside the model.

        Constants are not compared: under a strategy, a replica's number is one of them.
        """
        trace = traced.trace(spec)
        tracing.check(trace, traced.replicas)
        digests = likeness.describe(traced.replica.model) | likeness.describe_values(trace.closures)
        with self.context.watch.waiting():
            model_agreement.check(
                self.context.settings.cluster,
                self._device,
                ([digests], []),
                model_agreement.ALIKE,
            )

    def describe(self, total: int | None) -> Iterator[str]:
        """The strategy and its replicas."""
        settings, strategy = self.context.settings, self._strategy
        yield (
            f"{settings.job.strategy}: {type(strategy).__name__} with "
            f"{strategy.num_replicas_in_sync} replicas in {len(settings.cluster.tasks)} processes; "
            f"global batch {settings.job.trainer.global_batch_size}; {total or 'unknown'} steps"
        )
        yield from advise_transport(strategy.extended)


def omissions(strategy: str, processes: int, *, compares_models: bool) -> list[str]:
    """What is compared neither with one process nor between processes."""
    omitted = [f"strategy {strategy}, because a tf.distribute strategy holds the variables"]
    if processes > 1 and compares_models:
        omitted.append("constants of the processes' models, such as arrays that a loss closes over")
    elif processes > 1:
        omitted.append("the processes' models with each other")
    return omitted


def _build(context: setup.RunContext, connections: rendezvous.Rendezvous) -> Any:
    """Build the user's strategy or a TPU's, before any other operation of TensorFlow."""
    if context.settings.uses_tpu:
        limit = context.settings.job.trainer.start_timeout_seconds + _TPU_START_SECONDS
        with cluster.limited(limit):
            return _connect_tpu(context)
    module = context.module
    if not module.has(user_module.BUILD_STRATEGY):
        raise errors.UserCodeError(
            "build_strategy is missing, and strategy is 'Custom': define it, and let it return a "
            "tf.distribute.Strategy.",
            function=user_module.BUILD_STRATEGY,
        )
    with cluster.limited(), connections.guarded():
        strategy = module.call(user_module.BUILD_STRATEGY)
    check_kind(strategy, module)
    check_transport(strategy.extended)
    return strategy


def _check_places(settings: Settings, strategy: Any, local_ranks: tuple[int, ...]) -> None:
    """Refuse (BadConfigurationError) processes that train alone, and replicas without examples."""
    processes, replicas = len(settings.cluster.tasks), strategy.num_replicas_in_sync
    kind = type(strategy).__name__
    count = len(local_ranks)
    first = settings.cluster.me * count
    if local_ranks != tuple(range(first, first + count)) or replicas != processes * count:
        raise errors.BadConfigurationError(
            f"{settings.cluster.task.name} has {count} of the {replicas} replicas of "
            f"{kind}, and the job has {processes} processes. Let build_strategy return a strategy "
            "that joins them in the order of TF_CONFIG, each with as many replicas, such as "
            "tf.distribute.MultiWorkerMirroredStrategy; or use one process."
        )
    size = settings.job.trainer.global_batch_size
    if size < replicas:
        raise errors.BadConfigurationError(
            f"trainer.globalBatchSize is {size}, less than the {replicas} replicas of {kind} that "
            f"share it: give at least {replicas}."
        )


def check_optimizer(optimizer: Any) -> None:
    """Refuse (UserCodeError) settings of an optimizer that fail within a strategy's replicas."""
    if getattr(optimizer, "inner_optimizer", None) is not None:
        raise errors.UserCodeError(
            f"{type(optimizer).__name__} scales the loss (mixed_float16), and under a strategy "
            'Keras adds its gradients up twice: use "mixed_bfloat16".',
            function="compile_model",
        )
    if optimizer.gradient_accumulation_steps:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, which Keras cannot do under a strategy: "
            "remove it, or set strategy to Mirrored or MultiWorkerMirrored.",
            function="compile_model",
        )
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} has ema_overwrite_frequency="
            f"{optimizer.ema_overwrite_frequency}, which Keras cannot do under a strategy: remove "
            "it; averages are used at the end anyhow.",
            function="compile_model",
        )


def check_kind(strategy: Any, module: user.Module) -> None:
    """Refuse (UserCodeError) a strategy that does not train all replicas together."""
    kind = type(strategy).__name__
    if not isinstance(strategy, tf.distribute.Strategy):
        raise errors.UserCodeError(
            f"build_strategy returns {kind}: let it return a tf.distribute.Strategy.",
            function="build_strategy",
        )
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        raise errors.UserCodeError(
            f"build_strategy returns {kind}, whose workers do not wait for each other: set "
            "strategy to ParameterServer, which trains so, and remove build_strategy.",
            function="build_strategy",
        )


def check_transport(extended: Any) -> None:
    """Refuse (UserCodeError) NCCL where devices are no GPUs."""
    options = getattr(extended, "_communication_options", None)
    others = [device for device in extended.worker_devices if ":GPU:" not in device]
    nccl = tf.distribute.experimental.CommunicationImplementation.NCCL
    if options is not None and options.implementation == nccl and others:
        raise errors.UserCodeError(
            f"build_strategy asks for CommunicationImplementation.NCCL, and {others[0]} is no GPU: "
            "use CommunicationImplementation.AUTO, or give the replicas GPUs.",
            function=user_module.BUILD_STRATEGY,
        )


def advise_transport(extended: Any) -> Iterator[str]:
    """Log a note if a strategy's GPUs exchange tensors by host memory.

    That is the default between processes.

    Within one process, TensorFlow's MirroredStrategy chooses NCCL by itself.
    """
    options = getattr(extended, "_communication_options", None)
    implementations = tf.distribute.experimental.CommunicationImplementation
    if (
        options is not None
        and options.implementation == implementations.AUTO
        and all(":GPU:" in device for device in extended.worker_devices)
    ):
        yield (
            "the strategy's GPUs exchange tensors by host memory and gRPC: for NCCL, give it "
            "communication_options=tf.distribute.experimental.CommunicationOptions("
            "implementation=tf.distribute.experimental.CommunicationImplementation.NCCL)"
        )


def _connect_tpu(context: setup.RunContext) -> Any:
    """Initialise the TPU that the environment names, and return a strategy for all of it."""
    settings = context.settings
    name = tpu_name.find(os.environ)
    hosts = [
        tasks.Task("tpu", index, address) for index, address in enumerate(tpu_name.addresses(name))
    ]
    # TensorFlow waits for them without a limit or a message.
    limit = settings.job.trainer.start_timeout_seconds
    cluster.reach(settings.cluster, hosts, limit, context.out.say)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
        if name != tpu_name.LOCAL:
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.OpError, OSError, ValueError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise errors.BadConfigurationError(
            f"strategy is 'TPU', and TensorFlow cannot use the TPU {name!r} "
            f"({type(error).__name__}: {reason}). See that the name is right and that this image's "
            "TensorFlow is one for TPUs (tensorflow-tpu)."
        ) from error
