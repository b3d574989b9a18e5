"""The course of an asynchronous run as the chief sees it."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import nn  # layers convolve by what it holds

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import cluster, rendezvous, shape
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.engines import engine, setup
from tfparallel_trainer.engines.servers import (
    asynchronous,
    control,
    ledger,
    presence,
    server_referee,
    worker_steps,
)
from tfparallel_trainer.objective import trial

_ENDING_SECONDS = 1.0
"""Seconds for which an exiting process may still listen after its connections are closed."""

_DISMISS_SECONDS = 10.0
"""Seconds for which the chief waits until the others know that training is done."""


class ParameterServerRun(engine.RunTemplate):
    """Servers hold the model; this is the chief."""

    def __init__(self, context: setup.RunContext) -> None:
        super().__init__(context)
        self._cluster = context.settings.cluster
        self._limit = context.settings.job.trainer.start_timeout_seconds

    @contextlib.contextmanager
    def connect(self) -> Iterator[None]:
        """Connect to workers and servers, and dismiss them at the end."""
        self.context.count_devices()
        others, out = self._cluster.peers, self.context.out
        with control.Control(self._cluster.task) as self._answers:
            with self.context.watch.waiting():
                cluster.reach(self._cluster, others, self._limit, out.say, self._answers.absent)
            workers = self._cluster.with_role("worker")
            self._workers = presence.Workers(workers, self._answers, out.say)
            yield
            with self.context.watch.waiting():
                self._answers.dismiss((task.name for task in others), _DISMISS_SECONDS)

    @contextlib.contextmanager
    def watch_peers(self) -> Iterator[None]:
        """Watch which workers are available, and whether all servers are."""
        servers, give_up = self._cluster.with_role(tasks.SERVER), self.context.give_up
        with (
            presence.watching(self._workers, servers, self._answers, self._limit, give_up),
            _named(servers),
            kernels_read_first(),
        ):
            yield

    def prepare(self) -> setup.EngineSetup:
        """Build the model on the servers. It needs no barrier, because the chief ends last."""
        context = self.context
        with context.watch.waiting():
            strategy = _connect(self._cluster)
        context.stop.install()  # TensorFlow replaces the handler when it starts a cluster
        self._strategy = strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        engine_setup = setup.prepare(context, shape.MeshShape(), [""], strategy.scope)
        replica = engine_setup.replicas[0]
        worker_steps.check(replica, len(self._cluster.with_role("worker")))
        # Callbacks may predict and evaluate: Keras does that here, with the servers' variables.
        replica.model._distribute_strategy = None
        setup.check_export(context, replica.model)
        return dataclasses.replace(engine_setup, steps_by_worker=self._workers.steps)

    def build_engine(self, engine_setup: setup.EngineSetup) -> engine.Engine:
        """Build the engine that schedules steps on the workers."""
        context, strategy = self.context, self._strategy
        (replica,) = engine_setup.replicas
        with strategy.scope():
            applied_steps = tf.Variable(engine_setup.start.step, dtype=tf.int64, trainable=False)
        bound, workers = context.settings.job.trainer.max_staleness, self._workers
        most = asynchronous.waiting(len(workers.steps)) + len(workers.steps)
        return asynchronous.Asynchronous(
            ledger=ledger.Ledger(self._coordinator, most, workers.count_hung),
            workers=workers,
            replica=replica,
            steps=worker_steps.WorkerFunctions(
                strategy, context.module, replica, applied_steps, bound
            ),
            training=engine_setup.training,
            evaluation=engine_setup.evaluation,
            referee=self._referee(engine_setup),
        )

    def _referee(self, engine_setup: setup.EngineSetup) -> server_referee.ServerReferee | None:
        context, trainer = self.context, self.context.settings.job.trainer
        if trainer.verify is job_file.Verify.OFF:
            return None
        (served,), sample = engine_setup.replicas, engine_setup.training.sample()
        return server_referee.ServerReferee(
            served,
            server_referee.build(
                context.module, context.mesh(), trainer.seed, served.model, sample
            ),
            engine_setup.training.spec,
            len(self._workers.steps),
            always=trainer.verify is job_file.Verify.ALWAYS,
        )

    def describe(self, total: int | None) -> Iterator[str]:
        """The workers and servers, and the bound of staleness."""
        settings = self.context.settings
        servers, workers = self._cluster.with_role(tasks.SERVER), self._cluster.with_role("worker")
        bound = settings.job.trainer.max_staleness
        yield (
            f"{settings.job.strategy}: {len(workers)} workers and {len(servers)} servers; each "
            f"step is one worker's batch of {settings.job.trainer.global_batch_size}; "
            f"{'no bound of staleness' if bound is None else f'staleness up to {bound}'}; "
            f"{total or 'unknown'} steps"
        )


@contextlib.contextmanager
def kernels_read_first() -> Iterator[None]:
    """Let Keras read the kernel of a convolution before it calls what XLA compiles.

    Keras compiles grouped convolutions, and 3D convolutions with channels first. XLA cannot read a
    variable of another device.
    """
    convolve = nn.conv

    def read_first(inputs: Any, kernel: Any, *arguments: Any, **options: Any) -> Any:
        return convolve(inputs, tf.convert_to_tensor(kernel), *arguments, **options)

    with trial.substituted(nn, {"conv": read_first}):
        yield


@contextlib.contextmanager
def _named(servers: Sequence[tasks.Task]) -> Iterator[None]:
    """Name the lost server if TensorFlow fails because of it."""
    try:
        yield
    except tf.errors.OpError as error:
        # A server whose process is exiting may still listen for a moment.
        until = time.monotonic() + _ENDING_SECONDS
        while not (gone := [server for server in servers if cluster.refuses(server)]):
            if time.monotonic() > until:
                raise
            time.sleep(_ENDING_SECONDS / 10)
        names = ", ".join(f"{server.name} ({server.address})" for server in gone)
        raise errors.PeerLostError(
            f"Lost {names}, which held a part of the weights and no longer listens."
        ) from error


def _connect(processes: tasks.Cluster) -> Any:
    """Connect to all others. The chief's own TensorFlow server takes any free port."""
    host, _, _ = processes.task.address.rpartition(":")
    with cluster.reserved_port("") as port, cluster.limited():
        addresses = {**processes.addresses(), processes.task.role: [f"{host}:{port}"]}
        return tf.distribute.ParameterServerStrategy(rendezvous.resolver(processes, addresses))
