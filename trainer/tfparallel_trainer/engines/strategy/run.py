"""The course of a run under a strategy: the user's own, or TensorFlow's for TPUs."""

import contextlib
import dataclasses
from collections.abc import Iterator

from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import devices, rendezvous, shape
from tfparallel_trainer.data import batching
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.strategy import steps, strategies
from tfparallel_trainer.objective import checks
from tfparallel_trainer.runtime import setup


class Course(engine.Course):
    """A strategy places the model."""

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Build the strategy, which starts TensorFlow's cluster."""
        context, settings = self.context, self.context.settings
        count = context.count_devices()
        limit = settings.job.trainer.start_timeout_seconds
        with context.watch.waiting():
            connections = rendezvous.meet(settings.cluster, limit, context.out.say)
            self._strategy = strategies.build(
                settings, context.module, context.out.say, connections
            )
        context.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
        self._local_ranks = strategies.ranks_of_process(self._strategy)
        strategies.check_places(settings, self._strategy, self._local_ranks)
        context.compare(devices.names(settings.cluster, count)[0], count)
        connections.close()  # TensorFlow has started in all processes
        yield

    def prepared(self) -> engine.Prepared:
        """Build the model within the strategy's scope."""
        ready, traced = self._ready()
        self.barrier = traced.barrier
        evaluator = None
        if ready.evaluation is not None:
            evaluator = steps.Evaluation(traced, ready.evaluation.spec)
        synchronous = engine.Synchronous(
            ready.replicas,
            steps.TrainStep(traced, ready.training.spec),
            evaluator,
            ready.evaluation,
            traced.report,
            barrier=traced.barrier,
        )
        return engine.Prepared(ready=ready, engine=synchronous)

    def _ready(self) -> tuple[setup.Ready, steps.Steps]:
        context, strategy = self.context, self._strategy
        size, ranks = context.settings.job.trainer.global_batch_size, strategy.num_replicas_in_sync
        division = batching.Division(batch_size=size, ranks=ranks, local_ranks=self._local_ranks)
        ready = setup.prepare(context, shape.Mesh(), [""], strategy.scope, division)
        (built,) = ready.replicas
        for phase in built.computations:
            strategies.check_optimizer(phase.optimizer)
        setup.check_export(context, built.model)
        advised = dataclasses.replace(built, advice=checks.check(built.model, ranks))
        traced = steps.Steps(strategy, context.module, advised)
        start = ready.start
        with context.watch.waiting():
            step, epoch, example = traced.share_state([start.step, start.epoch, start.example])
        position = files.Position(step=step, epoch=epoch, example=example, observer=start.observer)
        return dataclasses.replace(ready, replicas=[advised], start=position), traced

    def announcement(self, total: int | None) -> Iterator[str]:
        """The strategy and its replicas."""
        settings, strategy = self.context.settings, self._strategy
        yield (
            f"{settings.job.strategy}: {type(strategy).__name__} with "
            f"{strategy.num_replicas_in_sync} replicas in {len(settings.cluster.tasks)} processes; "
            f"global batch {settings.job.trainer.global_batch_size}; {total or 'unknown'} steps"
        )
