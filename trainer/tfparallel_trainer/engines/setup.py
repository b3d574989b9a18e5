"""The context of a run, and what it prepares once the processes are connected."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import (
    export,
    files,
    initial_weights,
    keys,
    memory_copies,
    shard,
    store,
)
from tfparallel_trainer.comms import agreement, collectives, devices, nccl, rendezvous, shape
from tfparallel_trainer.contract import outputs, progress
from tfparallel_trainer.data import batch_division, data_functions, feed, nest
from tfparallel_trainer.engines import model_agreement
from tfparallel_trainer.lifecycle import stall, termination
from tfparallel_trainer.objective import (
    checks,
    likeness,
    metric_sums,
    phases,
    replica,
    state,
    tracing,
    updates,
)
from tfparallel_trainer.objective.replica import Replica
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console

_generations = itertools.count()
"""Counts the meshes of this process; a script may train several times."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run as this process sees it."""

    settings: Settings
    module: user.Module
    out: console.Console
    stop: termination.Termination
    give_up: Callable[[errors.TrainerError], None]
    """Ends the process from any thread."""
    watch: stall.Watch
    """Receives a sign of life of this process at each step."""
    started: float
    """time.monotonic() at the start of the process."""
    device_count: int | None = None
    """Number of devices of this process, if it has already joined its peers."""
    script: bool = False
    """Whether the user's script runs this, and keeps the trained model itself."""
    logs: bool = True
    """Whether the chief writes records into the output directory."""
    facts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Further facts that must be the same in all processes."""
    has_callbacks: bool = False
    """Whether the script gives callbacks."""
    has_twins: bool = False
    """Whether the script gives a model. Each further device gets a copy, built from its
    configuration."""
    memory_files: Sequence[int] = ()
    """Open files of the agent, for copies of the state that outlive this process."""
    until_end: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    """Contexts that last until the run ends; `train_to_end` closes them."""
    until_first_step: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    """Contexts that last until the first step is made and compared with one process."""

    def count_devices(self) -> int:
        """Return the number of devices.

        They are configured first, unless the process has joined its peers.
        """
        settings = self.settings
        if self.device_count:
            return self.device_count
        operation = self.module.first_operation
        return devices.prepare(settings.cpu_devices, settings.cluster.alone, operation)

    def mesh(self, **axes: int) -> shape.MeshShape:
        """The mesh of a run, with ranks by axis."""
        return shape.MeshShape(**axes, generation=next(_generations))

    @contextlib.contextmanager
    def join_cluster(self, count: int) -> Iterator[list[str]]:
        """Join one cluster with the peers while the body runs; yields the names of the devices."""
        cluster, handle = self.settings.cluster, None
        if not self.device_count and not cluster.alone:
            limit = self.settings.job.trainer.start_timeout_seconds
            with self.watch.waiting():
                connections = rendezvous.meet(cluster, limit, self.out.say)
                handle = rendezvous.join(cluster, connections)
        self.stop.install()  # TensorFlow replaces the handler of SIGTERM when it starts a cluster
        names = devices.names(cluster, count)
        self.check_same_everywhere(names[0], count)
        self._choose_transport(names)
        yield names
        del handle  # what holds the cluster

    def _choose_transport(self, names: Sequence[str]) -> None:
        """Choose NCCL for groups of GPUs if they can use it, and log the choice."""
        cluster = self.settings.cluster
        if ":GPU:" not in names[0] or len(names) * len(cluster.tasks) == 1:
            return
        with self.watch.waiting():
            obstacle = nccl.find_obstacle(cluster, names)
        collectives.use_nccl(not obstacle)
        if cluster.is_chief:
            self.out.say(nccl.describe(obstacle))

    def check_same_everywhere(self, device: str, count: int) -> None:
        """Refuse (BadConfigurationError) a run whose processes were started differently."""
        path = self.module.path
        job = "the arguments of fit" if self.script else "the job file"
        facts = {
            "the number of devices": count,
            job: agreement.digest(self.settings.digest),
            f"the content of {path.name}": agreement.digest(
                path.read_bytes() if path.is_file() else b""
            ),
            **self.facts,
        }
        with self.watch.waiting():  # a script may have run anything before this
            agreement.check(self.settings.cluster, device, facts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """The values that an engine is built from."""

    replicas: list[Replica]
    training: feed.Feed
    evaluation: feed.Feed | None
    saved: store.Store | None
    """The store of checkpoints. None: this process saves none."""
    state: shard.State
    """The variables that this process writes to a checkpoint."""
    memory: memory_copies.MemoryCopies | None = None
    """Copies of the state in memory, the same on all processes. None: there are none."""
    start: files.Position
    saved_step: int
    """Step of the newest checkpoint; 0 without one. The start may be newer."""
    attempt: int
    """Number of this attempt, from 1."""
    advice: list[str]
    """Sentences for the user about the model."""
    export: Callable[[files.Position], None] | None = None
    """Exports the trained model; all processes call it. Absent: the first replica has all of it."""
    build_model_access: Callable[[Sequence[Any]], Any] | None = None
    """Builds what callbacks see as the model. Absent: they see replicas of the whole model."""
    placement: Callable[[], progress.Placement | None] = lambda: None
    steps_by_worker: dict[str, int] | None = None

    def copy_state(self, at: files.Position) -> store.CheckpointCopy | None:
        """Copy the state in order to save a checkpoint. None: this process saves none."""
        if self.saved is None:
            return None
        return self.saved.copy(self.state, at)

    def reserve_memory(self) -> Callable[[files.Position], Callable[[], None]] | None:
        """Take memory for copies of the state that outlive this process.

        Returns a function that copies the state, and returns one that completes the copy. Without
        a store, this process copies nothing, and may only keep copies for another one. None: there
        are no copies. All processes call it alike.
        """
        saved = self.saved
        if self.memory is None or not self.memory.reserve(None if saved is None else self.state):
            return None
        return _copy_nothing if saved is None else saved.copy_in_memory


def _copy_nothing(_: files.Position) -> Callable[[], None]:
    return lambda: None


def prepare(
    context: RunContext,
    mesh: shape.MeshShape,
    device_names: list[str],
    scope: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    division: batch_division.BatchSharding | None = None,
) -> EngineSetup:
    """Load the data, build a replica on each device and restore the newest checkpoint.

    Variables are created in the scope. `division` says how batches are divided if the mesh has one
    rank only. Absent: over its data axis.

    Raises:
        UserCodeError: the module's functions raise, or return what cannot be trained.
        BadConfigurationError: the checkpoints or the initial weights are those of another model,
            or another live job writes there.
        PreemptedError: a newer attempt has started.
    """
    settings, module, watch = context.settings, context.module, context.watch
    say = context.out.say
    watch.moved("the preparation began")
    checkpoint, saved = settings.job.trainer.checkpoint, None
    memory = _open_memory(context)
    if checkpoint is not None and settings.cluster.is_chief:
        with watch.waiting("the wait for another job's end"):
            saved = store.Store(
                settings.checkpoints,
                checkpoint.keep,
                settings.job_uid,
                settings.attempt,
                say,
                namespace=settings.namespace,
                module_sum=settings.module_sum,
                memory=memory,
            )
        context.until_end.enter_context(saved.living())
    cut = division or division_for(mesh, settings, len(device_names))
    training, evaluation = examples(settings, module, cut)
    first = settings.cluster.me * len(device_names) if division is None else 0
    sample, seed = training.sample(), settings.job.trainer.seed
    replicas: list[Replica] = []
    for index, device in enumerate(device_names):
        if replicas:
            replica.forget_names()
        with scope():
            replicas.append(replica.build(module, mesh, first + index, device, seed, sample))
    if cut.ranks > 1 or settings.uses_servers:
        with scope():
            _check_metrics(module, replicas[0], sample)
        with user.guard(module.path, "training on examples like the first one raised"):
            first_replica = updates.find(replicas[0], sample, divided=cut.ranks > 1)
        replicas = [
            dataclasses.replace(rank_replica, updates=first_replica.updates)
            for rank_replica in replicas
        ]
    if division is None and not settings.uses_servers:
        _trace(context, replicas, training.spec)
    shards = shard.undivided(keys.for_training(replicas[0].model, replicas[0].optimizer))
    watch.moved("reading the newest checkpoint began")
    restored = None
    if saved is not None:
        restored = saved.restore(shards)
    elif memory is not None:
        memory.restore(None, oldest=0)
    if saved is not None and restored is not None:
        say(f"resuming after step {restored.step} from {saved.source}")
    weights = settings.job.trainer.initial_weights
    if restored is None and weights is not None and settings.cluster.is_chief:
        watch.moved("reading the initial weights began")
        initial_weights.load(replicas[0].model, weights, settings.source_dir)
        say(f"starting with the weights of {weights}")
    start = restored or files.Position(step=0, epoch=settings.first_epoch, example=0)
    saved_step = 0 if saved is None else saved.saved_step
    with watch.waiting():
        step, epoch, example, saved_step = state.share(
            replicas, [start.step, start.epoch, start.example, saved_step]
        )
    return EngineSetup(
        replicas=replicas,
        training=training,
        evaluation=evaluation,
        saved=saved,
        state=shards,
        memory=memory,
        start=files.Position(step=step, epoch=epoch, example=example, observer=start.observer),
        saved_step=saved_step,
        attempt=saved.attempt if saved is not None else settings.attempt or 1,
        advice=checks.advice(replicas[0].model, cut.ranks),
    )


def _open_memory(context: RunContext) -> memory_copies.MemoryCopies | None:
    """Open the copies in memory, of which the chief's agent and its partner's have some."""
    settings = context.settings
    # Servers have the state of their jobs, and live on when the chief ends. Scripts have no agent.
    if settings.job.trainer.checkpoint is None or settings.uses_servers or context.script:
        return None
    peers = agreement.peers(settings.cluster, devices.names(settings.cluster, 1)[0], context.watch)
    return memory_copies.MemoryCopies(context.memory_files, peers, context.out.say)


def _trace(context: RunContext, replicas: Sequence[Replica], spec: Any) -> None:
    """Find the closures of steps, and refuse models that differ in them."""
    module, first = context.module, replicas[0]
    cluster, is_twinned = context.settings.cluster, context.has_twins and len(replicas) > 1
    traces: list[tracing.Trace] = []
    is_traced = context.has_callbacks or module.has("callbacks") or is_twinned or not cluster.alone
    # Steps of a stateful layer need a fixed batch size, which the part's description lacks.
    if is_traced and not checks.find_stateful(first.model):
        with user.guard(module.path, "tracing a training step raised"):
            traces = [tracing.trace(first, spec)]
            if is_twinned or traces[0].closures:  # equal replicas have as many
                traces += [tracing.trace(rank_replica, spec) for rank_replica in replicas[1:]]
    if first.data.size > 1:
        models = [likeness.describe(rank_replica.model) for rank_replica in replicas]
        traced = [
            likeness.describe_trace(rank_replica.model, trace)
            for rank_replica, trace in zip(replicas, traces, strict=False)
        ]
        remedy = model_agreement.FUNCTION if is_twinned else model_agreement.ALIKE
        with context.watch.waiting():
            model_agreement.check(cluster, first.device, (models, traced), remedy)
    for rank_replica, trace in zip(replicas, traces, strict=False):
        tracing.check(trace, first.data.size)
        rank_replica.closures.extend(trace.closures)


def _check_metrics(module: user.Module, rank_replica: Replica, sample: Any) -> None:
    """Refuse metrics that would be wrong as sums over replicas."""
    with tf.device(rank_replica.device), user.guard(module.path, "computing the metrics raised"):
        tensors = nest.convert(tf.convert_to_tensor, sample)
        model = rank_replica.model
        metric_sums.check(model, lambda: phases.predict(model, tensors), tensors)


def division_for(
    mesh: shape.MeshShape, settings: Settings, device_count: int
) -> batch_division.BatchSharding:
    """How batches are divided over the devices of this process."""
    first = settings.cluster.me * device_count
    places = [mesh.coordinates(first + rank)[shape.Axis.DATA] for rank in range(device_count)]
    return batch_division.BatchSharding(
        batch_size=settings.job.trainer.global_batch_size,
        ranks=mesh.data,
        local_ranks=tuple(places),
    )


def examples(
    settings: Settings, module: user.Module, division: batch_division.BatchSharding
) -> tuple[feed.Feed, feed.Feed | None]:
    """The training data, and the data to evaluate on during training."""
    evaluates = module.has("evaluation_data") and not settings.job.evaluator
    evaluation = (
        data_functions.evaluation(module, data_request(settings, division)) if evaluates else None
    )
    return data_functions.training(module, data_request(settings, division)), evaluation


def data_request(
    settings: Settings, division: batch_division.BatchSharding
) -> data_functions.Request:
    """The request that is passed to the data functions."""
    endless_allowed = settings.job.trainer.steps is not None
    return data_functions.Request(user_context(settings), division, endless_allowed)


def user_context(settings: Settings, epoch: int = 0) -> user.Context:
    """Build the information for the user's functions in an epoch."""
    spec = settings.job.trainer
    return user.Context(
        seed=spec.seed,
        epoch=epoch,
        global_batch_size=spec.global_batch_size,
        source_dir=settings.source_dir,
        output_dir=settings.output_dir,
    )


def check_export(context: RunContext, model: Any) -> None:
    """Check before training that `export` will be able to write the model; a script keeps it."""
    if context.script:
        return
    export.check(model, context.module.path)
    if context.settings.job.trainer.saved_model and context.settings.cluster.is_chief:
        context.watch.moved(f"the first export of {outputs.SAVED_MODEL} began")
        serving = context.settings.output_dir / outputs.SAVED_MODEL
        export.check_for_serving(model, serving, context.module.path)
