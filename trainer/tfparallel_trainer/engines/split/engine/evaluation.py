"""Evaluation of a model in stages: every batch goes forward through them, then one sum."""

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import feed
from tfparallel_trainer.engines.split.engine import coordination, ranks, stage_worker, tracing
from tfparallel_trainer.objective import evaluate


class Evaluation(evaluate.Evaluator):
    """Evaluates the model of all ranks."""

    def __init__(
        self,
        module: user.Module,
        local_ranks: ranks.Ranks,
        spec: Any,
        coordinator: coordination.Coordinator,
    ) -> None:
        """Args:
        module: the user's module, for the messages.
        local_ranks: the ranks of this process.
        spec: structure of a part of a batch.
        coordinator: how all ranks meet.
        """
        super().__init__([rank.head for rank in local_ranks.local])
        self._module = module
        self._ranks = local_ranks
        self._spec = spec
        self._traced: dict[ranks.Shares, Any] = {}
        self._coordinator = coordinator

    def share_statistics(self) -> None:
        """Along the data axis."""
        self._coordinator.share_statistics()

    def averaged(self) -> AbstractContextManager[None]:
        """On all ranks."""
        return self._coordinator.averaged()

    def sums(self, batch: feed.Batch) -> Any:
        """Over the first ranks of this process."""
        shares = self._ranks.shares(batch.examples)
        return self._function(shares)(self._ranks.parts(batch, shares)).numpy()

    def results(self, sums: Any) -> dict[str, float]:
        """Over all processes."""
        penalty = sum(float(rank.penalty()) for rank in self._ranks.local)
        metrics, (totals, penalties) = self._coordinator.report(sums, penalty)
        return {**evaluate.losses_with(self._replicas[0], totals, penalties), **metrics}

    def _function(self, shares: ranks.Shares) -> Any:
        if shares not in self._traced:

            def run(parts: Any) -> tf.Tensor:
                self._ranks.begin(collectives.Program.EVALUATE, shares)
                return self._sums(shares, parts)

            with user.guard(self._module.path, "tracing the evaluation raised"):
                self._traced[shares] = tf.function(run, autograph=False).get_concrete_function(
                    self._ranks.spec(self._spec, shares)
                )
        return self._traced[shares]

    def _sums(self, shares: ranks.Shares, parts: Any) -> tf.Tensor:
        """Numerators and denominators over the examples of this process: [2, terms]."""
        partition = self._ranks.partition
        workers = {}
        for rank in self._ranks.local:
            workload = self._ranks.workload(rank, shares, parts, tf.zeros((), tf.int64))
            workers[rank.index] = stage_worker.StageWorker(
                rank, partition, workload, training=False
            )
        tracing.emit(partition, partition.evaluation(shares), workers, self._ranks.between)
        totals = [tf.zeros((2, len(self._ranks.local[0].head.terms)), tf.float64)]
        done = []
        for worker in workers.values():
            with worker.fence():
                done.append(tf.no_op())
                if worker.rank.is_first:
                    sums = [tf.stack(worker.numerators), tf.stack(worker.denominators)]
                    totals.append(tf.stack(sums))
        # TensorFlow leaves out what a rank only sends, unless an operation waits for it; and
        # `add_n` of one tensor, where no rank here counts anything, is no operation.
        with tf.control_dependencies(done):
            return tf.identity(tf.add_n(totals))
