"""Steps and evaluations of a model in stages, traced once for each division of a batch."""

from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.split.execution import (
    backward,
    loss_head,
    program_trace,
    ranks,
    stage_worker,
    step_reduction,
)
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import evaluate, synchrony, train_step
from tfparallel_trainer.objective.referee import trials


class PipelineTrainStep(engine.Step):
    """The training step as a tf.function, traced once for each division of a batch.

    Args:
        spec: structure of a part of a batch, as tf.TensorSpec [None, …].
        leaves_out: whether a step with a loss or gradient that is not finite changes nothing.
    """

    def __init__(
        self,
        module: user.Module,
        local_ranks: ranks.Ranks,
        spec: Any,
        batch_size: int,
        *,
        leaves_out: bool = False,
        targets: Any = None,
    ) -> None:
        divided = local_ranks.partition
        parts = divided.mesh.data * divided.microbatches
        head = local_ranks.local[0].head
        super().__init__(module, head, parts, targets, leaves_out=leaves_out)
        self._ranks = local_ranks
        self._spec = spec
        self._full_shares = local_ranks.shares(batch_size)
        self._traced: dict[stage_worker.Shares, Any] = {}
        self._kinds: step_reduction.Kinds = {}

    def compute(
        self,
        step: int,
        batch: batch_division.Batch,
        requests: engine.Numbers,
        *,
        gives_metrics: bool,
    ) -> train_step.StepOutput:
        """Run the step on this process's parts of a batch."""
        shares = self._ranks.shares(batch.examples)
        parts = self._ranks.parts(batch, shares)
        results = self._function(shares)(
            tf.constant(step, tf.int64), tf.constant(requests, tf.float64), parts
        )
        *values, timings = (tensor.numpy() for tensor in results)
        self._ranks.timing.add(timings.tolist())
        return train_step.StepOutput(*values)

    def _function(self, shares: stage_worker.Shares) -> Any:
        self.check_size(sum(shares))
        if not all(shares) and not self._kinds:
            # Only a rank that has examples can find the kinds of its stage's gradients.
            self._function(self._full_shares)
        if shares not in self._traced:

            def run(step: tf.Tensor, signals: tf.Tensor, parts: Any) -> Any:
                self._ranks.begin(collectives.Program.TRAIN, shares)
                return self._run(shares, step, signals, parts)

            with user.guard(self.module.path, "tracing a training step raised"):
                self._traced[shares] = tf.function(run, autograph=False).get_concrete_function(
                    tf.TensorSpec((), tf.int64),
                    tf.TensorSpec((engine.REQUESTS,), tf.float64),
                    self._ranks.spec(self._spec, shares),
                )
        return self._traced[shares]

    def check_size(self, examples: int) -> None:
        """Refuse (UserCodeError) a batch with too few examples for places that all need some."""
        divided = self._ranks.partition
        if all(self._ranks.shares(examples)):
            return
        if divided.adds_up:
            layer, *_ = synchrony.among(node.calls for node in divided.model.nodes)
            reason = f"{layer.name} (synchronized=True) adds up over all of them"
            remedy = ", or use LayerNormalization"
        elif divided.effects.assigned:
            key, node = next(iter(divided.effects.assigned.items()))
            reason = f"{node} assigns {divided.model.variables[key].path} where it has examples"
            remedy = ""
        else:
            return
        raise errors.UserCodeError(
            f"A batch has {examples} examples, fewer than the {divided.mesh.data} places along "
            f"mesh.data, and {reason}. Let the last batch of an epoch have at least "
            f"{divided.mesh.data} (change trainer.globalBatchSize, or leave examples out){remedy}.",
            function="training_data",
        )

    def check(self, part: Any) -> None:
        """Refuse a loss that is not a mean over examples.

        The graph's layers were checked before.
        """
        with user.guard(self.module.path, "computing the loss of drawn outputs raised"):
            divided = self._ranks
            loss_head.check_loss(
                divided.local[0].head, divided.partition.model, part, self._targets
            )

    def trial(self, divided: Partition, shares: stage_worker.Shares) -> Any:
        """Trace the step of a check on a few examples.

        The concrete function takes the step's number and the parts of this process. It returns the
        loss, and the gradients of each rank's trained variables, as `trials.split` does.
        """

        def run(step: tf.Tensor, parts: Any) -> Any:
            self._ranks.begin(collectives.Program.VERIFY, shares)
            workload = stage_worker.Workload(
                shares=shares, parts=parts, step=step, draws_alike=True
            )
            signals = tf.zeros((engine.REQUESTS,), tf.float64)
            reduction = self._reduction(divided, workload, signals)
            loss, *_ = reduction.update(leaves_out=False)
            gradients = [
                [trials.split(gradient) for gradient in reduction.gradients(rank.index)]
                for rank in self._ranks.local
            ]
            return loss, gradients

        return tf.function(run, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.int64), self._ranks.spec(self._spec, shares)
        )

    def _run(
        self, shares: stage_worker.Shares, step: tf.Tensor, signals: tf.Tensor, parts: Any
    ) -> Any:
        workload = stage_worker.Workload(shares=shares, parts=parts, step=step)
        return self._reduction(self._ranks.partition, workload, signals).update(
            leaves_out=self.leaves_out
        )

    def _reduction(
        self, divided: Partition, workload: stage_worker.Workload, signals: tf.Tensor
    ) -> step_reduction.Reduction:
        """Run a batch through all ranks, up to the sums of their gradients."""
        between, division = self._ranks.between, self._ranks.division
        workers = {
            rank.index: backward.TrainingWorker(rank, divided, workload, division)
            for rank in self._ranks.local
        }
        reduction = step_reduction.Reduction(workers, between, signals, self._kinds, division)
        program_trace.trace(
            divided, divided.training(workload.shares), workers, between, reduction.reduce
        )
        return reduction


class PipelineEngine(engine.Synchronous):
    """Steps of ranks that each have a part of the model."""

    def __init__(
        self,
        local_ranks: ranks.Ranks,
        step: PipelineTrainStep,
        evaluator: evaluate.Evaluator | None,
        examples: batch_division.BatchSource | None,
    ) -> None:
        super().__init__([rank.head for rank in local_ranks.local], step, evaluator, examples)
        self._ranks = local_ranks

    def reduce_metrics(self) -> dict[str, float]:
        """Sum the metrics over all ranks."""
        return self._ranks.metrics()

    def weights_are_finite(self) -> bool:
        """Whether all trained weights are finite, the same on every process."""
        return self._ranks.finite()

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._ranks.barrier()


class PipelineEvaluator(evaluate.Evaluator):
    """Evaluates the model of all ranks."""

    def __init__(self, module: user.Module, local_ranks: ranks.Ranks, spec: Any) -> None:
        heads = [rank.head for rank in local_ranks.local]
        super().__init__(heads, local_ranks.share_statistics, local_ranks.averaged)
        self._module = module
        self._ranks = local_ranks
        self._spec = spec
        self._traced: dict[stage_worker.Shares, Any] = {}

    def sums(self, batch: batch_division.Batch) -> Any:
        """The sums over this process's ranks that report the loss."""
        shares = self._ranks.shares(batch.examples)
        return self._function(shares)(self._ranks.parts(batch, shares)).numpy()

    def results(self, sums: Any) -> dict[str, float]:
        """The results over all processes."""
        penalty = sum(float(rank.penalty()) for rank in self._ranks.local)
        metrics, (totals, penalties) = self._ranks.report(sums, penalty)
        return {**evaluate.losses(self._replicas[0], totals, penalties), **metrics}

    def _function(self, shares: stage_worker.Shares) -> Any:
        if shares not in self._traced:

            def run(parts: Any) -> tf.Tensor:
                self._ranks.begin(collectives.Program.EVALUATE, shares)
                return self._sums(shares, parts)

            with user.guard(self._module.path, "tracing the evaluation raised"):
                self._traced[shares] = tf.function(run, autograph=False).get_concrete_function(
                    self._ranks.spec(self._spec, shares)
                )
        return self._traced[shares]

    def _sums(self, shares: stage_worker.Shares, parts: Any) -> tf.Tensor:
        """Numerators and denominators over the examples of this process: [2, terms]."""
        divided, step = self._ranks.partition, tf.zeros((), tf.int64)
        workload = stage_worker.Workload(shares=shares, parts=parts, step=step)
        workers = {
            rank.index: stage_worker.StageWorker(rank, divided, workload, training=False)
            for rank in self._ranks.local
        }
        program_trace.trace(divided, divided.evaluation(shares), workers, self._ranks.between)
        totals = [tf.zeros((2, len(self._ranks.local[0].head.terms)), tf.float64)]
        done = []
        for worker in workers.values():
            with worker.ordering.compute():
                done.append(tf.no_op())
                sums = [tf.stack(worker.numerators), tf.stack(worker.denominators)]
                totals.append(tf.stack(sums))
        # TensorFlow prunes what a rank only sends, unless an operation waits for it. `add_n` of one
        # tensor, as when no rank here reports a loss, creates no operation.
        with tf.control_dependencies(done):
            return tf.identity(tf.add_n(totals))
