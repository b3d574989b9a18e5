"""What follows in a step when all microbatches are through: sums over ranks, and the update.

The loss is Σ w N / D + R, as in `objective.train`. N and D are the sums of a term's numerators and
denominators over microbatches and ranks, w its weight and R the regularisation. The order is Keras'
own: gradients are complete before they are tested, unscaled, clipped by norms over all ranks and
applied.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.engine import backward, exchange, head
from tfparallel_trainer.engines.split.pipeline import programs
from tfparallel_trainer.objective import gradients, lookups

Kinds = dict[int, list[gradients.Kind]]
"""Of the gradients of each rank, which one without examples cannot know."""


class Reduction:
    """Of the ranks of this process, while a step is traced."""

    def __init__(
        self,
        workers: Mapping[int, backward.Training],
        between: exchange.Exchange,
        signals: tf.Tensor,
        kinds: Kinds,
        known: head.Division,
    ) -> None:
        """Take what this process tells the others, float64 [n]; further kinds become known."""
        self._workers = workers
        self._between = between
        self._signals = signals
        self._kinds = kinds
        self._divides = known is head.Division.LAST
        self._losses: dict[int, _Loss] = {}
        self._complete: dict[int, backward.CompleteGradients] = {}
        self._norms: dict[int, tf.Tensor] = {}
        self._before = {}
        for index, worker in workers.items():
            with tf.device(worker.rank.device):
                states = worker.rank.head.model.metrics_variables
                self._before[index] = [(state, tf.identity(state.value)) for state in states]

    def total(self, step: programs.Rendezvous, participants: Sequence[int]) -> None:
        """Make a sum that a list asks for, for these of its ranks."""
        match step.tag:
            case programs.DENOMINATORS:
                denominators = self._sum(step.ranks, participants, self._denominators)
                for index, settled in denominators.items():
                    self._workers[index].settled = settled
            case programs.GRADIENTS:
                self._sum_gradients(step.ranks, participants)
            case programs.ALL:
                self._sum_all(step.ranks, participants)
            case programs.LOSS:
                self._know_losses(self._sum(step.ranks, participants, self._parts_of_loss))
            case str(tag) if tag.startswith(programs.PARTS):
                self._sum_parts(step.ranks, participants, shape.Axis(tag.rpartition(" ")[2]))
            case str(tag) if tag.startswith(programs.SQUARES):
                self._sum_squares(step.ranks, participants, shape.Axis(tag.rpartition(" ")[2]))
            case programs.NORM:
                self._norms = self._sum(step.ranks, participants, self._parts_of_norm)
            case key:
                self._sum_shared(str(key), step.ranks, participants)

    def update(self, *, leaves_out: bool) -> list[tf.Tensor]:
        """Let each rank make its update; with `leaves_out` only if the step is finite.

        Returns:
            The loss, that of each output, the sum of all processes' signals, whether all is finite,
            and what is seen of the step (`watched.Watched`).
        """
        results = []
        for index, worker in self._workers.items():
            with worker.fence():
                loss = self._losses[index]
                is_finite = self._is_finite(index)
                self._update(index, is_finite if leaves_out else None)
                results.append([loss.total, loss.terms, loss.signals, is_finite, loss.watched])
        return results[0]

    @property
    def _first(self) -> backward.Training:
        return self._workers[min(self._workers)]

    def _sum(
        self,
        ranks: tuple[int, ...],
        participants: Sequence[int],
        parts: Callable[[int], tf.Tensor],
    ) -> dict[int, tf.Tensor]:
        summands = {}
        for index in participants:
            with self._workers[index].fence():
                summands[index] = [parts(index)]
        sums = {index: one for index, (one,) in self._between.total(ranks, summands).items()}
        for index, one in sums.items():
            self._workers[index].did([one])
        return sums

    def _add_up(
        self,
        ranks: tuple[int, ...],
        keys: Sequence[str],
        summands: Mapping[int, Sequence[Any]],
        kinds: Mapping[int, Sequence[gradients.Kind]],
        also: Mapping[int, Sequence[tf.Tensor]] = MappingProxyType({}),
    ) -> dict[int, list[Any]]:
        """Add up the gradients of some weights, and other numbers; gives the sums of the latter."""
        weights = {
            index: [self._workers[index].rank.weights[key] for key in keys] for index in summands
        }
        others = {}
        for index, sums in self._between.gradients(ranks, summands, kinds, weights, also).items():
            self._workers[index].gradients |= dict(zip(keys, sums, strict=False))
            self._workers[index].did(exchange.parts(sums))
            others[index] = sums[len(keys) :]
        return others

    def _sum_shared(self, key: str, ranks: tuple[int, ...], participants: Sequence[int]) -> None:
        """Add up the gradients of a weight that several stages have."""
        summands, kinds = {}, {}
        for index in participants:
            worker = self._workers[index]
            if key not in worker.gradients:
                return  # it is not trained
            with worker.fence():
                summand = self._shared(key, worker.gradients[key], worker.rank.weights[key])
            # Each stage's look-ups are look-ups of their own.
            summands[index], kinds[index] = [summand], [gradients.kind(summand, ())]
        self._add_up(ranks, [key], summands, kinds)

    def _shared(self, key: str, gradient: Any, weight: Any) -> Any:
        """What a stage adds for a weight: without examples, a gradient of no rows or of zeros."""
        if self._looks_up(key):
            if gradient is not None:
                return exchange.here(gradient)
            batch = lookups.Lookup(of_batch=True)
            return gradients.zeros([gradients.Kind(gradients.Form.SPARSE, (batch,))], [weight])[0]
        dense = tf.zeros(weight.shape, weight.dtype) if gradient is None else gradient
        return tf.ensure_shape(tf.convert_to_tensor(dense), weight.shape)

    def _looks_up(self, key: str) -> bool:
        """Whether all that reads a weight looks rows up, so that its gradient may stay sparse."""
        reading = [node for node in self._first.nodes if key in node.variables]
        return all(type(node.calls) is keras.layers.Embedding for node in reading)

    def _sum_parts(
        self, ranks: tuple[int, ...], participants: Sequence[int], axis: shape.Axis
    ) -> None:
        """Add up gradients of which each rank along an axis has a part."""
        first = self._workers[participants[0]]
        keys = [key for key in first.gradients if axis in first.rank.shards[key].summed]
        if not keys or not first.examples:
            return
        summands, kinds = {}, {}
        for index in participants:
            worker = self._workers[index]
            with worker.fence():
                summands[index] = [exchange.here(worker.gradients[key]) for key in keys]
            kinds[index] = list(map(worker.rank.kind, keys, summands[index]))
        self._add_up(ranks, keys, summands, kinds)

    def _sum_squares(
        self, ranks: tuple[int, ...], participants: Sequence[int], axis: shape.Axis
    ) -> None:
        """Add up the squares of the gradients of variables that are cut over an axis."""

        def is_cut(index: int) -> list[bool]:
            rank = self._workers[index].rank
            return [rank.shards[key].layout.dimension(axis) is not None for key in rank.trained]

        def squares(index: int) -> tf.Tensor:
            values = self._finished(index).squares
            return tf.where(is_cut(index), values, tf.zeros_like(values))

        for index, total in self._sum(ranks, participants, squares).items():
            finished = self._finished(index)
            with self._workers[index].fence():
                finished.squares = tf.where(is_cut(index), total, finished.squares)

    def _sum_gradients(
        self,
        ranks: tuple[int, ...],
        participants: Sequence[int],
        parts: Callable[[int], tf.Tensor] | None = None,
    ) -> dict[int, list[Any]]:
        """Add gradients up over the data axis; gives the sums of other parts, if there are any."""
        keys = list(self._workers[participants[0]].gradients)
        summands, also = {}, {}
        for index in participants:
            worker = self._workers[index]
            with worker.fence():
                summands[index] = [exchange.here(one) for one in worker.gradients.values()]
                if worker.examples:
                    self._kinds[index] = list(map(worker.rank.kind, keys, summands[index]))
                else:
                    weights = list(worker.rank.trained.values())
                    summands[index] = gradients.zeros(self._kinds[index], weights)
                also[index] = [] if parts is None else [parts(index)]
        return self._add_up(ranks, keys, summands, self._kinds, also)

    def _sum_all(self, ranks: tuple[int, ...], participants: Sequence[int]) -> None:
        """Add up gradients and loss; their norms every rank knows then, as it has all of them."""
        loss_sums = self._sum_gradients(ranks, participants, self._parts_of_loss)
        self._know_losses({index: numbers for index, (numbers,) in loss_sums.items()})
        for index in participants:
            with self._workers[index].fence():
                self._norms[index] = self._parts_of_norm(index)

    def _know_losses(self, sums: Mapping[int, tf.Tensor]) -> None:
        """Take what `_parts_of_loss` sums up to, for each rank."""
        count = len(self._first.rank.head.terms)
        for index, numbers in sums.items():
            worker = self._workers[index]
            self._losses[index] = _Loss(worker, numbers, count, self._signals.shape[0])

    def _denominators(self, index: int) -> tf.Tensor:
        return tf.stack(self._workers[index].denominators)

    def _parts_of_loss(self, index: int) -> tf.Tensor:
        """What a rank adds to the loss, what its process tells, and what is seen of it."""
        worker = self._workers[index]
        rank = worker.rank
        penalty = backward.penalty(rank.trained, [key for key in rank.trained if rank.owns(key)])
        numbers = tf.stack([*worker.denominators, *worker.numerators])
        if not rank.is_first:  # others compute the same
            numbers = tf.zeros_like(numbers)
        numbers = tf.concat([numbers, [penalty]], 0)
        signals = self._signals if worker is self._first else tf.zeros_like(self._signals)
        return tf.concat([numbers, signals, worker.watched()], 0)

    def _finished(self, index: int) -> backward.CompleteGradients:
        """The gradients of a rank, completed once the loss is known."""
        if index not in self._complete:
            factor = self._losses[index].factor if self._divides else None
            self._complete[index] = backward.CompleteGradients(self._workers[index], factor)
        return self._complete[index]

    def _parts_of_norm(self, index: int) -> tf.Tensor:
        """How many gradients are not finite, and the sum of the squares of those of a rank."""
        finished = self._finished(index)
        return tf.stack([finished.failed, finished.own_square])

    def _is_finite(self, index: int) -> tf.Tensor:
        """Whether loss and gradients are finite; with loss scaling, gradients may overflow."""
        is_finite = tf.math.is_finite(self._losses[index].total)
        if self._workers[index].rank.optimizer.scales:
            return is_finite
        return is_finite & tf.equal(self._norms[index][0], 0)

    def _update(self, index: int, condition: tf.Tensor | None) -> None:
        """Change what belongs to a rank: weights, statistics, optimizer."""
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
    """The loss over all ranks, from the sum of what they gave."""

    def __init__(
        self, worker: backward.Training, numbers: tf.Tensor, count: int, signal_count: int
    ) -> None:
        terms = worker.rank.head.terms
        denominators, numerators = numbers[:count], numbers[count : 2 * count]
        weights = tf.constant([term.weight for term in terms], tf.float64)
        divided = tf.constant([term.divided for term in terms])
        scales = tf.where(divided, tf.math.divide_no_nan(weights, denominators), weights)
        self.terms = numerators * scales
        """That of each output."""
        self.total = tf.reduce_sum(self.terms) + numbers[2 * count]
        self.signals, self.watched = tf.split(numbers[2 * count + 1 :], [signal_count, -1])
        self.factor = tf.where(divided[0], tf.math.divide_no_nan(1.0, denominators[0]), 1.0)
        """What gradients of the numerator are multiplied by where there is only one."""
