"""One asynchronous run as the chief sees it: find the others, train, leave the results."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, reporting, run, settings, setup
from tfparallel_trainer.mesh import cluster, devices, shape, tasks, watch
from tfparallel_trainer.servers import asynchronous, control, steps

_DISMISS_SECONDS = 10.0
"""How long the others may take to hear that training is done."""


def train_to_end(given: settings.Settings, process: run.Process) -> None:
    """Train the user's model on the workers and leave the results in the output directory.

    Raises:
        TrainerError: the run ends early; TensorFlow's own errors are not translated here.
    """
    devices.prepare(given.cpu_devices, given.cluster.alone)
    others = given.cluster.peers
    with control.Control(given.cluster.task) as answers:
        cluster.reach(
            given.cluster, others, given.job.trainer.start_timeout_seconds, process.out.say
        )
        servers = given.cluster.of(tasks.SERVER)
        with (
            watch.these(servers, process.give_up),
            run.reporter_of(given, process.out) as reporter,
        ):
            _train(given, process, reporter)
        answers.dismiss((task.name for task in others), _DISMISS_SECONDS)


def _train(given: settings.Settings, process: run.Process, reporter: reporting.Reporter) -> None:
    strategy = _connect(given.cluster)
    process.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    ready = setup.prepare(
        given, process.module, shape.Mesh(), [""], process.out.say, strategy.scope
    )
    own = ready.replicas[0]
    steps.check(own.model)
    bound = given.job.trainer.max_staleness
    with strategy.scope():
        made = tf.Variable(ready.start.step, dtype=tf.int64, trainable=False)
    workers = given.cluster.of("worker")
    made_by = asynchronous.Asynchronous(
        coordinator,
        len(workers),
        own,
        steps.Steps(strategy, process.module, own, made, bound),
        ready.training,
        ready.evaluation,
        _Presence(workers, given.job.trainer.start_timeout_seconds, process.out.say).look,
        bound is not None,
    )
    outer = run.loop(given, process, ready, reporter, made_by)
    _announce(given, process, ready, outer.total_steps)
    process.stop.allow(run.GRACE_SECONDS)
    outer.run()
    run.write_results(given, process, ready, reporter, outer.position)


def _connect(given: tasks.Cluster) -> Any:
    """Connect to all others; the chief's own server takes any port that is free."""
    host, _, _ = given.task.address.rpartition(":")
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    addresses = {**given.addresses(), given.task.role: [f"{host}:{port}"]}
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(addresses),
            task_type=given.task.role,
            task_id=given.task.index,
            rpc_layer="grpc",
        )
    )


class _Presence:
    """Tells when workers leave and come back, and gives up when all are gone for long."""

    def __init__(
        self, workers: tuple[tasks.Task, ...], limit: float, say: Callable[[str], None]
    ) -> None:
        self._workers = workers
        self._limit = limit
        self._say = say
        self._absent: set[tasks.Task] = set()
        self._seen_at = time.monotonic()

    def look(self) -> None:
        """Look at all workers' ports.

        Raises:
            PeerLostError: no worker has been there for longer than the start timeout.
        """
        absent = {worker for worker in self._workers if watch.refuses(worker)}
        for worker in self._workers:
            if worker in absent - self._absent:
                self._say(f"{worker.name} is gone ({worker.address}); it may come back")
            if worker in self._absent - absent:
                self._say(f"{worker.name} is back")
        self._absent = absent
        if len(absent) < len(self._workers):
            self._seen_at = time.monotonic()
        elif time.monotonic() - self._seen_at > self._limit:
            raise errors.PeerLostError(
                f"A peer was lost: no worker has been there for {self._limit:g} s "
                "(startTimeoutSeconds)."
            )


def _announce(
    given: settings.Settings, process: run.Process, ready: setup.Ready, total: int | None
) -> None:
    servers, workers = given.cluster.of(tasks.SERVER), given.cluster.of("worker")
    bound = given.job.trainer.max_staleness
    process.out.say(
        f"{given.job.strategy}: {len(workers)} workers and {len(servers)} servers; each step is "
        f"one worker's batch of {given.job.trainer.global_batch_size}; "
        f"{'no bound of staleness' if bound is None else f'staleness up to {bound}'}; "
        f"{total or 'unknown'} steps"
    )
    for sentence in ready.replicas[0].advice:
        process.out.say(f"warning: {sentence}")
    if given.job.trainer.checkpoint is None:
        process.out.say("warning: without trainer.checkpoint a restart begins at step 0")
