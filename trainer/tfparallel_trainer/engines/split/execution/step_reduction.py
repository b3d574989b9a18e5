"""After all microbatches: sums over ranks, then the optimizer update.

The loss is Σ w N / D + R, as in `objective.train_step`. N and D are the sums of a term's numerators
and denominators over microbatches and ranks, w its weight and R the regularisation. The order is
Keras': complete gradients are tested, unscaled, clipped by norms over all ranks and applied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.execution import (
    backward,
    loss_head,
    rank_transport,
    state_exchange,
)
from tfparallel_trainer.engines.split.pipeline import programs
from tfparallel_trainer.objective import gradient_sums, lookups
from tfparallel_trainer.objective.gradient_sums import Form, Kind

Kinds = dict[int, list[Kind]]
"""The kinds of each rank's gradients. A rank without examples cannot find them itself."""

_Summands = Callable[[int], tuple[list[Any], list[Kind]]]
"""Returns a rank's summands of the gradients of some weights, and their kinds."""


class Reduction:
    """The sums and the update of the ranks of this process, while a step is traced."""

    def __init__(
        self,
        workers: Mapping[int, backward.TrainingWorker],
        between: rank_transport.RankTransport,
        signals: tf.Tensor,
        kinds: Kinds,
        division: loss_head.LossDivision,
    ) -> None:
        """Take the requests of this process, float64 [n]; `kinds` is filled in."""
        self._workers = workers
        self._between = between
        self._signals = signals
        self._kinds = kinds
        self._divides = division is loss_head.LossDivision.LAST
        self._losses: dict[int, _Loss] = {}
        self._complete: dict[int, backward.CompleteGradients] = {}
        self._norms: dict[int, tf.Tensor] = {}
        self._before = {}
        for index, worker in workers.items():
            with tf.device(worker.rank.device):
                states = worker.rank.head.model.metrics_variables
                self._before[index] = [(state, tf.identity(state.value)) for state in states]

    def reduce(self, ranks: tuple[int, ...], total: programs.Sum, local: Sequence[int]) -> None:
        """Make a sum over some ranks, of which `local` are in this process."""
        match total:
            case programs.Sum(programs.SumKind.DENOMINATORS):
                denominators = self._sum(ranks, local, self._denominators)
                for index, sums in denominators.items():
                    self._workers[index].set_batch_denominators(sums)
            case programs.Sum(programs.SumKind.SHARED_WEIGHT, key=key):
                self._sum_shared(key, ranks, local)
            case programs.Sum(programs.SumKind.PARTIAL_GRADIENTS, shape.Axis() as axis):
                self._sum_partial(ranks, local, axis)
            case programs.Sum(programs.SumKind.GRADIENTS):
                self._sum_gradients(ranks, local)
            case programs.Sum(programs.SumKind.LOSS):
                self._compute_losses(self._sum(ranks, local, self._loss_summands))
            case programs.Sum(programs.SumKind.SQUARES, shape.Axis() as axis):
                self._sum_squares(ranks, local, axis)
            case programs.Sum(programs.SumKind.NORM):
                self._norms = self._sum(ranks, local, self._norm_summands)
            case programs.Sum(programs.SumKind.GRADIENTS_AND_LOSS):
                self._sum_all(ranks, local)

    def update(self, *, leaves_out: bool) -> list[tf.Tensor]:
        """Let each rank make its update; with `leaves_out` only if the step is finite.

        Returns:
            The loss, that of each output, the sum of all processes' signals, whether all is finite,
            and the timings of the step (`step_timing.StepTiming`).
        """
        results = []
        for index, worker in self._workers.items():
            with worker.ordering.compute():
                loss = self._losses[index]
                is_finite = tf.math.is_finite(loss.total)
                if not worker.rank.optimizer.scales:  # with loss scaling, gradients may overflow
                    is_finite = is_finite & tf.equal(self._norms[index][0], 0)
                self._update(index, is_finite if leaves_out else None)
                results.append([loss.total, loss.terms, loss.signals, is_finite, loss.timings])
        state_exchange.share_updates(self._between, self._workers.values())
        return results[0]

    def gradients(self, index: int) -> list[Any]:
        """The gradients of a rank after all sums, before its optimizer clips them."""
        return self._finished(index).scaled

    @property
    def _first(self) -> backward.TrainingWorker:
        return self._workers[min(self._workers)]

    def _sum(
        self,
        ranks: tuple[int, ...],
        participants: Sequence[int],
        number: Callable[[int], tf.Tensor] | None = None,
        keys: Sequence[str] = (),
        summands: _Summands = lambda _: ([], []),
    ) -> dict[int, tf.Tensor]:
        """Add up a tensor and gradients of some weights; returns the tensor's sums."""
        local_gradients, kinds, weights, also = {}, {}, {}, {}
        for index in participants:
            worker = self._workers[index]
            weights[index] = [worker.rank.weights[key] for key in keys]
            with worker.ordering.compute():
                local_gradients[index], kinds[index] = summands(index)
                also[index] = [] if number is None else [number(index)]
        totals = self._between.gradients(ranks, local_gradients, kinds, weights, also)
        for index, sums in totals.items():
            self._workers[index].gradients |= dict(zip(keys, sums, strict=False))
            with self._workers[index].ordering.compute() as results:
                results += rank_transport.parts(sums)
        return {index: sums[-1] for index, sums in totals.items() if number is not None}

    def _sum_shared(self, key: str, ranks: tuple[int, ...], participants: Sequence[int]) -> None:
        """Add up the gradients of a weight that several stages have, if it has one."""
        first = self._workers[participants[0]]
        if key not in first.gradients or key in first.effects.constant_weights:
            return

        def summands(index: int) -> tuple[list[Any], list[Kind]]:
            worker = self._workers[index]
            summand = self._shared(key, worker.gradients[key], worker.rank.weights[key])
            # The look-ups of each stage stay separate.
            return [summand], [gradient_sums.classify(summand, ())]

        self._sum(ranks, participants, None, [key], summands)

    def _shared(self, key: str, gradient: Any, weight: Any) -> Any:
        """A stage's summand for a shared weight.

        Without examples, it has no rows or is zeros. It may stay sparse if all nodes that read the
        weight look rows up.
        """
        reading = [node for node in self._first.nodes if key in node.variables]
        if all(type(node.calls) is keras.layers.Embedding for node in reading):
            if gradient is not None:
                return rank_transport.here(gradient)
            batch = lookups.Lookup(of_batch=True)
            return gradient_sums.zeros([Kind(Form.SPARSE, (batch,))], [weight])[0]
        dense = tf.zeros(weight.shape, weight.dtype) if gradient is None else gradient
        return tf.ensure_shape(tf.convert_to_tensor(dense), weight.shape)

    def _sum_partial(
        self, ranks: tuple[int, ...], participants: Sequence[int], axis: shape.Axis
    ) -> None:
        """Add up gradients of which each rank along an axis has a summand."""
        first = self._workers[participants[0]]
        keys = [key for key in first.gradients if axis in first.rank.shards[key].summed]
        if not keys or not first.examples:
            return

        def summands(index: int) -> tuple[list[Any], list[Kind]]:
            worker = self._workers[index]
            parts = [rank_transport.here(worker.gradients[key]) for key in keys]
            return parts, list(map(worker.rank.kind, keys, parts))

        self._sum(ranks, participants, None, keys, summands)

    def _sum_squares(
        self, ranks: tuple[int, ...], participants: Sequence[int], axis: shape.Axis
    ) -> None:
        """Add up the squares of the gradients of variables that are sharded over an axis."""
        if not self._first.rank.optimizer.clips_by_norms:
            return

        def is_cut(index: int) -> list[bool]:
            rank = self._workers[index].rank
            if axis is shape.Axis.DATA:
                return [key in rank.state for key in rank.trained]
            return [rank.shards[key].layout.dimension(axis) is not None for key in rank.trained]

        def squares(index: int) -> tf.Tensor:
            values = self._finished(index).squares
            return tf.where(is_cut(index), values, tf.zeros_like(values))

        for index, total in self._sum(ranks, participants, squares).items():
            finished = self._finished(index)
            with self._workers[index].ordering.compute():
                finished.squares = tf.where(is_cut(index), total, finished.squares)

    def _sum_gradients(
        self,
        ranks: tuple[int, ...],
        participants: Sequence[int],
        number: Callable[[int], tf.Tensor] | None = None,
    ) -> dict[int, tf.Tensor]:
        """Add up gradients over the data axis; returns the sums of a tensor, if one is given.

        If ranks shard the update of a weight, each rank gets its slices of the sum.
        """
        state = self._workers[participants[0]].rank.state
        of_ranks: dict[int, dict[str, tuple[Any, Kind]]] = {}
        for index in participants:
            with self._workers[index].ordering.compute():
                of_ranks[index] = self._gradients_of_examples(index)
        kinds = {key: kind for key, (_, kind) in of_ranks[participants[0]].items()}
        scattered = [key for key in state if kinds[key].form is Form.DENSE]
        summed = [key for key in kinds if key not in scattered]

        def summands(index: int) -> tuple[list[Any], list[Kind]]:
            chosen = [of_ranks[index][key] for key in summed]
            return [gradient for gradient, _ in chosen], [kind for _, kind in chosen]

        totals = self._sum(ranks, participants, number, summed, summands)
        if state:
            dense = {
                index: {key: of_rank[key][0] for key in scattered}
                for index, of_rank in of_ranks.items()
            }
            state_exchange.scatter_gradients(self._between, self._workers, dense)
        return totals

    def _gradients_of_examples(self, index: int) -> dict[str, tuple[Any, Kind]]:
        """The gradients of a rank, by key. Without examples, they are zeros or have no rows."""
        worker = self._workers[index]
        gradients: Sequence[Any]
        if worker.examples:
            gradients = [rank_transport.here(gradient) for gradient in worker.gradients.values()]
            self._kinds[index] = list(map(worker.rank.kind, worker.gradients, gradients))
        else:
            gradients = gradient_sums.zeros(self._kinds[index], list(worker.rank.trained.values()))
        pairs = zip(gradients, self._kinds[index], strict=True)
        return dict(zip(worker.gradients, pairs, strict=True))

    def _sum_all(self, ranks: tuple[int, ...], participants: Sequence[int]) -> None:
        """Add up gradients and loss. Each rank has all gradients then, and so knows their norms."""
        self._compute_losses(self._sum_gradients(ranks, participants, self._loss_summands))
        for index in participants:
            with self._workers[index].ordering.compute():
                self._norms[index] = self._norm_summands(index)

    def _compute_losses(self, sums: Mapping[int, tf.Tensor]) -> None:
        """Compute each rank's loss from the sums of `_loss_summands`."""
        count = len(self._first.rank.head.terms)
        for index, numbers in sums.items():
            worker = self._workers[index]
            self._losses[index] = _Loss(worker, numbers, count, self._signals.shape[0])

    def _denominators(self, index: int) -> tf.Tensor:
        return tf.stack(self._workers[index].denominators)

    def _loss_summands(self, index: int) -> tf.Tensor:
        """A rank's summands: of the loss, of the requests of its process, and of timings."""
        worker = self._workers[index]
        rank = worker.rank
        owned = {
            key: worker.assigned(key)
            for key, variable in rank.trained.items()
            if variable.regularizer is not None and rank.owns(key)
        }
        penalty = worker.penalty(owned)
        numbers = tf.stack([*worker.denominators, *worker.numerators, penalty])
        signals = self._signals if worker is self._first else tf.zeros_like(self._signals)
        return tf.concat([numbers, signals, worker.timings()], 0)

    def _finished(self, index: int) -> backward.CompleteGradients:
        """Complete the gradients of a rank, after the loss is known."""
        if index not in self._complete:
            factor = self._losses[index].factor if self._divides else None
            self._complete[index] = backward.CompleteGradients(self._workers[index], factor)
        return self._complete[index]

    def _norm_summands(self, index: int) -> tf.Tensor:
        """The number of a rank's gradients that are not finite, and the sum of their squares."""
        finished = self._finished(index)
        return tf.stack([finished.failed, finished.own_square])

    def _update(self, index: int, condition: tf.Tensor | None) -> None:
        """Update the variables of a rank: weights, statistics, optimizer."""
        rank = self._workers[index].rank
        for key, value in self._workers[index].statistics.items():
            weight = rank.weights[key]
            weight.assign(value if condition is None else tf.where(condition, value, weight.value))
        if condition is not None:
            for state, value in self._before[index]:
                state.assign(tf.where(condition, state.value, value))
        norm = tf.sqrt(self._norms[index][1])
        finished = self._finished(index)

        def apply() -> tf.Tensor:
            rank.optimizer.apply(finished.gradients, norm, tf.sqrt(finished.squares))
            return tf.constant(True)

        def leave() -> tf.Tensor:
            rank.optimizer.overflowed()
            return tf.constant(False)

        if rank.optimizer.scales:
            fits = tf.equal(self._norms[index][0], 0)
            tf.cond(fits if condition is None else fits & condition, apply, leave)
        elif condition is not None:
            tf.cond(condition, apply, lambda: tf.constant(False))
        else:
            apply()


class _Loss:
    """The loss over all ranks, from the sum of their summands."""

    def __init__(
        self, worker: backward.TrainingWorker, numbers: tf.Tensor, count: int, signal_count: int
    ) -> None:
        terms = worker.rank.head.terms
        denominators, numerators = numbers[:count], numbers[count : 2 * count]
        weights = tf.constant([term.weight for term in terms], tf.float64)
        divided = tf.constant([term.divided for term in terms])
        scales = tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)
        self.terms = numerators * scales
        """The loss of each output."""
        self.total = tf.reduce_sum(self.terms) + numbers[2 * count]
        self.signals, self.timings = tf.split(numbers[2 * count + 1 :], [signal_count, -1])
        self.factor = tf.where(divided[0], tf.math.divide_no_nan(1.0, denominators[0]), 1.0)
        """The factor of the numerator's gradients, if the loss has one term."""
