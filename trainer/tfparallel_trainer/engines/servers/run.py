"""One asynchronous run as the chief sees it: find the others, train, leave the results."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import export
from tfparallel_trainer.comms import cluster, devices, shape, tasks, watch
from tfparallel_trainer.engines.servers import asynchronous, control, ledger, presence, steps
from tfparallel_trainer.runtime import run, settings, setup
from tfparallel_trainer.runtime.lifecycle import termination
from tfparallel_trainer.runtime.reporting import reports

_ENDING_SECONDS = 1.0
"""How long a process that ends may still listen after its connections are gone."""

_DISMISS_SECONDS = 10.0
"""How long the others may take to hear that training is done."""


def train_to_end(settings: settings.Settings, process: run.Process) -> None:
    """Train the user's model on the workers and leave the results in the output directory.

    Raises:
        TrainerError: the run ends early; TensorFlow's own errors are not translated here.
    """
    devices.prepare(settings.cpu_devices, settings.cluster.alone)
    others = settings.cluster.peers
    with control.Control(settings.cluster.task) as answers:
        limit = settings.job.trainer.start_timeout_seconds
        with process.watch.waiting():
            cluster.reach(settings.cluster, others, limit, process.out.say, answers.absent)
        servers = settings.cluster.of(tasks.SERVER)
        workers = presence.Workers(settings.cluster.of("worker"), answers, process.out.say)
        with (
            run.reporter_of(settings, process) as reporter,
            presence.watching(workers, servers, answers, limit, process.give_up),
            _named(servers),
        ):
            _train(settings, process, reporter, workers)
        with process.watch.waiting():
            answers.dismiss((task.name for task in others), _DISMISS_SECONDS)


@contextlib.contextmanager
def _named(servers: Sequence[tasks.Task]) -> Iterator[None]:
    """Say which server is gone when TensorFlow fails for the want of it."""
    try:
        yield
    except tf.errors.OpError as error:
        gone = _gone(servers)
        if not gone:
            raise
        names = ", ".join(f"{server.name} ({server.address})" for server in gone)
        raise errors.PeerLostError(
            f"A peer was lost: {names} no longer listens, and held a part of the weights."
        ) from error


def _gone(servers: Sequence[tasks.Task]) -> list[tasks.Task]:
    """Those that no longer listen; one whose process is just ending does for a moment yet."""
    until = time.monotonic() + _ENDING_SECONDS
    while not (gone := [server for server in servers if watch.refuses(server)]):
        if time.monotonic() > until:
            break
        time.sleep(_ENDING_SECONDS / 10)
    return gone


def _train(
    settings: settings.Settings,
    process: run.Process,
    reporter: reports.Reporter,
    workers: presence.Workers,
) -> None:
    with process.watch.waiting():
        strategy = _connect(settings.cluster)
    process.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    ready = setup.prepare(
        settings,
        process.module,
        shape.Mesh(),
        [""],
        process.out.say,
        process.watch,
        strategy.scope,
    )
    replica = ready.replicas[0]
    steps.check(replica.model)
    if not process.script:
        export.check(replica.model, process.module.path)
    bound = settings.job.trainer.max_staleness
    with strategy.scope():
        applied_steps = tf.Variable(ready.start.step, dtype=tf.int64, trainable=False)
    most = asynchronous.waiting(len(workers.steps)) + len(workers.steps)
    worker_engine = asynchronous.Asynchronous(
        ledger.Ledger(coordinator, most, workers.hung_since),
        workers,
        replica,
        steps.Steps(strategy, process.module, replica, applied_steps, bound),
        ready.training,
        ready.evaluation,
        bound is not None,
    )
    outer = run.loop(settings, process, ready, reporter, worker_engine)
    _announce(settings, process, ready, outer.total_steps)
    process.stop.allow(termination.STEP_SECONDS)
    outer.run()
    if not process.script:
        run.write_results(settings, process, ready, reporter, outer.position, workers.steps)


def _connect(processes: tasks.Cluster) -> Any:
    """Connect to all others; the chief's own server takes any port that is free."""
    host, _, _ = processes.task.address.rpartition(":")
    with cluster.reserved_port("") as port, cluster.limited():
        addresses = {**processes.addresses(), processes.task.role: [f"{host}:{port}"]}
        strategy: object = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(addresses),
                task_type=processes.task.role,
                task_id=processes.task.index,
                rpc_layer="grpc",
            )
        )
    return strategy


def _announce(
    settings: settings.Settings, process: run.Process, ready: setup.Ready, total: int | None
) -> None:
    servers, workers = settings.cluster.of(tasks.SERVER), settings.cluster.of("worker")
    bound = settings.job.trainer.max_staleness
    process.out.say(
        f"{settings.job.strategy}: {len(workers)} workers and {len(servers)} servers; each step is "
        f"one worker's batch of {settings.job.trainer.global_batch_size}; "
        f"{'no bound of staleness' if bound is None else f'staleness up to {bound}'}; "
        f"{total or 'unknown'} steps"
    )
    run.warn(settings, process, ready)
