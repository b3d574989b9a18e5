"""One run under a strategy from start to end: build it, prepare, train, leave the results."""

import contextlib
import dataclasses
from typing import Any

from tfparallel_trainer.checkpoint import export, files
from tfparallel_trainer.comms import devices, rendezvous, shape, watch
from tfparallel_trainer.data import feed
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.strategy import evaluation, places, steps, strategies
from tfparallel_trainer.loop import training
from tfparallel_trainer.objective import checks
from tfparallel_trainer.runtime import run, settings, setup
from tfparallel_trainer.runtime.lifecycle import termination
from tfparallel_trainer.runtime.reporting import reports


def train_to_end(settings: settings.Settings, process: run.Process) -> None:
    """Train the user's model under the strategy and leave the results in the output directory.

    Raises:
        TrainerError: the run ends early; TensorFlow's own errors are not translated here.
    """
    count = devices.prepare(settings.cpu_devices, settings.cluster.alone)
    limit = settings.job.trainer.start_timeout_seconds
    with process.watch.waiting():
        connections = rendezvous.meet(settings.cluster, limit, process.out.say)
        strategy = strategies.build(settings, process.module, process.out.say, connections)
    process.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    local_ranks = places.of_process(strategy)
    strategies.check_places(settings, strategy, local_ranks)
    run.compare(settings, process, devices.names(settings.cluster, count)[0], count)
    connections.close()  # TensorFlow has started in all processes
    with (
        contextlib.ExitStack() as ending,
        run.reporter_of(settings, process) as reporter,
        watch.peers(settings.cluster, process.give_up),
    ):
        ready, traced = _prepare(settings, process, strategy, local_ranks)
        ending.push(run.leaving(settings, process, traced.barrier))
        outer = _train(settings, process, ready, traced, reporter, strategy)
        if settings.cluster.is_chief:
            run.write_results(settings, process, ready, reporter, outer.position)
        with process.watch.waiting():
            traced.barrier()  # nobody leaves before the chief has written everything


def _prepare(
    settings: settings.Settings,
    process: run.Process,
    strategy: Any,
    local_ranks: tuple[int, ...],
) -> tuple[setup.Ready, steps.Steps]:
    size, ranks = settings.job.trainer.global_batch_size, strategy.num_replicas_in_sync
    division = feed.Division(batch_size=size, ranks=ranks, local_ranks=local_ranks)
    ready = setup.prepare(
        settings,
        process.module,
        shape.Mesh(),
        [""],
        process.out.say,
        process.watch,
        strategy.scope,
        division,
    )
    (built,) = ready.replicas
    strategies.check_model(built.model)
    export.check(built.model, process.module.path)
    advised = dataclasses.replace(built, advice=checks.check(built.model, ranks))
    traced = steps.Steps(strategy, process.module, advised)
    start = ready.start
    with process.watch.waiting():
        step, epoch, example = traced.share_state([start.step, start.epoch, start.example])
    position = files.Position(step=step, epoch=epoch, example=example)
    return dataclasses.replace(ready, replicas=[advised], start=position), traced


def _train(
    settings: settings.Settings,
    process: run.Process,
    ready: setup.Ready,
    traced: steps.Steps,
    reporter: reports.Reporter,
    strategy: Any,
) -> training.Training:
    evaluator = None
    if ready.evaluation is not None:
        evaluator = evaluation.Evaluation(ready.replicas[0], traced, ready.evaluation.spec)
    step = traced.train(ready.training.spec)
    synchronous = engine.Synchronous(
        ready.replicas,
        step,
        evaluator,
        ready.evaluation,
        traced.report,
        barrier=traced.barrier,
    )
    outer = run.loop(settings, process, ready, reporter, synchronous)
    if settings.cluster.is_chief:
        _announce(settings, process, ready, strategy, outer.total_steps)
    process.stop.allow(termination.STEP_SECONDS)
    outer.run()
    return outer


def _announce(
    settings: settings.Settings,
    process: run.Process,
    ready: setup.Ready,
    strategy: Any,
    total: int | None,
) -> None:
    process.out.say(
        f"{settings.job.strategy}: {type(strategy).__name__} with {strategy.num_replicas_in_sync} "
        f"replicas in {len(settings.cluster.tasks)} processes; global batch "
        f"{settings.job.trainer.global_batch_size}; {total or 'unknown'} steps"
    )
    run.warn(settings, process, ready)
