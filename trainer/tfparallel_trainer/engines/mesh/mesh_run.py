"""The course of a run in which every rank has the whole model."""

import contextlib
import dataclasses
from collections.abc import Iterator

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import order
from tfparallel_trainer.engines import engine, setup
from tfparallel_trainer.engines.mesh import local_work, mesh_steps
from tfparallel_trainer.objective import compilation, independence
from tfparallel_trainer.objective.replica import Replica
from tfparallel_trainer.reporting import console


class MeshRun(engine.RunTemplate):
    """Every rank has the whole model."""

    @contextlib.contextmanager
    def connect(self) -> Iterator[None]:
        """Join one cluster with all peers."""
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

    def prepare(self) -> setup.EngineSetup:
        """Build a replica on each device."""
        engine_setup = setup.prepare(self.context, self._mesh, self._devices)
        setup.check_export(self.context, engine_setup.replicas[0].model)
        return engine_setup

    def build_engine(self, engine_setup: setup.EngineSetup) -> engine.Engine:
        """Build the steps. The first call of each traces it."""
        module, evaluator = self.context.module, None
        if engine_setup.evaluation is not None:
            # In a script, callbacks decide whether averages are evaluated, as in Keras
            # (SwapEMAWeights).
            averaged, spec = not self.context.script, engine_setup.evaluation.spec
            evaluator = mesh_steps.MeshEvaluator(
                module, engine_setup.replicas, spec, averaged=averaged
            )
        choice = self.context.settings.job.trainer.on_non_finite_loss
        leaves_out = choice is job_file.OnNonFiniteLoss.CONTINUE
        step = mesh_steps.MeshTrainStep(
            module,
            self._compiled(engine_setup),
            engine_setup.training.spec,
            self.context.settings.job.trainer.global_batch_size,
            leaves_out=leaves_out,
            verify=self.context.settings.job.trainer.verify,
            targets=engine_setup.training.targets(independence.POOL),
            say=self.context.out.say if self.context.settings.cluster.is_chief else None,
        )
        parts = engine_setup.replicas, step, evaluator, engine_setup.evaluation
        synchronous = engine.Synchronous(*parts)
        if not self.context.settings.cluster.alone:
            work = local_work.LocalWork(
                engine_setup.replicas, self.context.settings.cluster, engine_setup.training.wait
            )
            synchronous = local_work.ComparedSynchronous(*parts, work)
        self.barrier = synchronous.barrier
        return synchronous

    def _compiled(self, engine_setup: setup.EngineSetup) -> list[Replica]:
        """Return the replicas, noting that XLA compiles their steps if the job asks for that."""
        context, replicas = self.context, engine_setup.replicas
        trainer, ranks = context.settings.job.trainer, self._mesh.data
        choice, model = trainer.jit_compile, replicas[0].model
        by_module = choice is job_file.JitCompile.AUTO and ranks == 1 and model.jit_compile
        if choice is not job_file.JitCompile.ON and not by_module:
            return replicas
        examples = len(order.split(trainer.global_batch_size, ranks)[0])
        context.watch.moved("the translation of the step for XLA began")
        with user.guard(context.module.path, "tracing a training step raised"):
            obstacle = compilation.find_obstacle(replicas[0], engine_setup.training.spec, examples)
        if obstacle and not by_module:
            raise errors.BadConfigurationError(
                f"trainer.jitCompile is 'On', and XLA cannot compile the training step: {obstacle}."
                " Set jitCompile to Off."
            ).on_every_process()
        if context.settings.cluster.is_chief:
            context.out.say(
                f"XLA compiles no step: {obstacle}" if obstacle else "XLA compiles steps"
            )
        return [dataclasses.replace(replica, is_compiled=not obstacle) for replica in replicas]

    def describe(self, total: int | None) -> Iterator[str]:
        """The ranks, their processes, and their parts of a batch."""
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
