"""The course of a run in which every rank has the whole model."""

import contextlib
from collections.abc import Iterator

from tfparallel_trainer import errors
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import order
from tfparallel_trainer.engines import engine, setup
from tfparallel_trainer.engines.mesh import steps
from tfparallel_trainer.objective import independence
from tfparallel_trainer.reporting import console


class MeshRun(engine.RunTemplate):
    """Every rank has the whole model."""

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Be one cluster with all peers."""
        count = self.context.count_devices()
        ranks = count * len(self.context.settings.cluster.tasks)
        self._mesh = self.context.mesh(data=ranks)
        size = self.context.settings.job.trainer.global_batch_size
        if size < ranks:
            raise errors.BadConfigurationError(
                f"trainer.globalBatchSize is {size}, less than the {ranks} ranks "
                f"({len(self.context.settings.cluster.tasks)} processes with {count} devices each)"
                f" that share it: give at least {ranks}, or use fewer replicas."
            )
        with self.context.join_cluster(count) as self._devices:
            yield

    def prepared(self) -> engine.Prepared:
        """Build a replica on each device."""
        ready = setup.prepare(self.context, self._mesh, self._devices)
        setup.check_export(self.context, ready.replicas[0].model)
        module, evaluator = self.context.module, None
        if ready.evaluation is not None:
            # A script's callbacks (SwapEMAWeights) say whether averages are, as in Keras.
            averaged, spec = not self.context.script, ready.evaluation.spec
            evaluator = steps.Evaluation(module, ready.replicas, spec, averaged=averaged)
        choice = self.context.settings.job.trainer.on_non_finite_loss
        leaves_out = choice is job_file.OnNonFiniteLoss.CONTINUE
        step = steps.TrainStep(
            module,
            ready.replicas,
            ready.training.spec,
            leaves_out=leaves_out,
            verify=self.context.settings.job.trainer.verify,
            targets=ready.training.targets(independence.POOL),
        )
        synchronous = engine.Synchronous(ready.replicas, step, evaluator, ready.evaluation)
        self.barrier = synchronous.barrier
        return engine.Prepared(ready=ready, engine=synchronous)

    def announcement(self, total: int | None) -> Iterator[str]:
        """The ranks, where they are, and their parts of a batch."""
        ranks, settings = self._mesh.data, self.context.settings
        if ranks == 1 and self.context.script:
            return
        size, tasks = settings.job.trainer.global_batch_size, settings.cluster.tasks
        parts = [len(part) for part in order.split(size, ranks)]
        shares = " + ".join(map(str, parts[:8])) + (" + …" if ranks > 8 else "")
        places = ", ".join(f"{task.name} {task.address}" for task in tasks[:8])
        more = f" and {len(tasks) - 8} more" if len(tasks) > 8 else ""
        yield (
            f"{settings.job.strategy}: {console.counted(ranks, 'rank')} = "
            f"{console.counted(len(tasks), 'process')} with "
            f"{console.counted(ranks // len(tasks), 'device')} each ({self._devices[0]}, …)"
            f" at {places}{more}; global batch {size} = {shares}; {total or 'unknown'} steps"
        )
