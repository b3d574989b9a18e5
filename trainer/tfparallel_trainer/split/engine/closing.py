"""What follows in a step when all microbatches are through: sums over ranks, and the update.

With N and D the sums of a term's numerators and denominators over microbatches and ranks, w its
weight and R the regularisation, the loss is Σ w N / D + R, as in `step.train`. The order is Keras'
own: gradients are complete before they are tested, unscaled, clipped by norms over all ranks and
applied.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.mesh import shape
from tfparallel_trainer.split.engine import backward, exchange, outcome
from tfparallel_trainer.split.pipeline import communication, division, programs
from tfparallel_trainer.step import gradients, lookups

Kinds = dict[int, list[gradients.Kind]]
"""Of the gradients of each rank, which one without examples cannot know."""


class Closing:
    """Of the ranks of this process, while a step is traced."""

    def __init__(
        self,
        working: Mapping[int, backward.Training],
        between: exchange.Exchange,
        told: tf.Tensor,
        kinds: Kinds,
        known: division.Division,
    ) -> None:
        """Args:
        working: what each rank does.
        between: how they meet.
        told: what this process tells the others, which is added up: float64 [n].
        kinds: of gradients; those that become known are added.
        known: when denominators are known.
        """
        self._working = working
        self._between = between
        self._told = told
        self._kinds = kinds
        self._divides = known is division.Division.LAST
        self._losses: dict[int, outcome.Loss] = {}
        self._finished: dict[int, outcome.Complete] = {}
        self._norms: dict[int, tf.Tensor] = {}
        self._before = {}
        for rank, actor in working.items():
            with tf.device(actor.own.device):
                states = actor.own.head.model.metrics_variables
                self._before[rank] = [(state, tf.identity(state.value)) for state in states]

    def total(self, step: communication.Meeting, together: Sequence[int]) -> None:
        """Make a sum that a list asks for, for these of its ranks."""
        match step.tag:
            case programs.DENOMINATORS:
                found = self._sum(step.ranks, together, self._denominators)
                for rank, settled in found.items():
                    self._working[rank].settled = settled
            case programs.GRADIENTS:
                self._sum_gradients(step.ranks, together)
            case programs.ALL:
                self._sum_all(step.ranks, together)
            case programs.LOSS:
                self._know_losses(self._sum(step.ranks, together, self._parts_of_loss))
            case str(tag) if tag.startswith(programs.PARTS):
                self._sum_parts(step.ranks, together, shape.Axis(tag.rpartition(" ")[2]))
            case str(tag) if tag.startswith(programs.SQUARES):
                self._sum_squares(step.ranks, together, shape.Axis(tag.rpartition(" ")[2]))
            case programs.NORM:
                self._norms = self._sum(step.ranks, together, self._parts_of_norm)
            case key:
                self._sum_shared(str(key), step.ranks, together)

    def update(self, *, leaves_out: bool) -> list[tf.Tensor]:
        """Let each rank make its update.

        Args:
            leaves_out: whether a step that is not finite changes nothing.

        Returns:
            The loss, that of each output, the sum of what processes told, whether all is finite,
            and what is seen of the step (`watched.Watched`).
        """
        outcomes = []
        for rank, actor in self._working.items():
            with actor.fence():
                found = self._losses[rank]
                is_finite = self._is_finite(rank)
                self._update(rank, is_finite if leaves_out else None)
                outcomes.append([found.total, found.terms, found.told, is_finite, found.watched])
        return outcomes[0]

    @property
    def _first(self) -> backward.Training:
        return self._working[min(self._working)]

    def _sum(
        self,
        ranks: tuple[int, ...],
        together: Sequence[int],
        parts: Callable[[int], tf.Tensor],
    ) -> dict[int, tf.Tensor]:
        """Add up numbers that each rank gives."""
        given = {}
        for rank in together:
            with self._working[rank].fence():
                given[rank] = [parts(rank)]
        found = {rank: one for rank, (one,) in self._between.total(ranks, given).items()}
        for rank, one in found.items():
            self._working[rank].did([one])
        return found

    def _sum_shared(self, key: str, ranks: tuple[int, ...], together: Sequence[int]) -> None:
        """Add up the gradients of a weight that several stages have."""
        given = {}
        for rank in together:
            actor = self._working[rank]
            if key not in actor.gradients:
                return  # it is not trained
            own, weight = actor.gradients[key], actor.own.weights[key]
            with actor.fence():
                if self._looks_up(key):
                    given[rank] = self._mentions(own, weight)
                    continue
                dense = tf.zeros(weight.shape, weight.dtype) if own is None else own
                given[rank] = [tf.ensure_shape(tf.convert_to_tensor(dense), weight.shape)]
        if self._looks_up(key):
            weights = {rank: [self._working[rank].own.weights[key]] for rank in together}
            # Each stage's look-ups are look-ups of their own.
            kinds = {rank: [gradients.kind(own[0], ())] for rank, own in given.items()}
            sums = self._between.gradients(ranks, given, kinds, weights)
        else:
            sums = self._between.total(ranks, given)
        for rank, (found,) in sums.items():
            self._working[rank].gradients[key] = found
            self._working[rank].did(exchange.parts([found]))

    def _looks_up(self, key: str) -> bool:
        """Whether all that reads a weight looks rows up, so that its gradient may stay sparse."""
        reading = [node for node in self._first.nodes if key in node.variables]
        return all(type(node.calls) is keras.layers.Embedding for node in reading)

    def _mentions(self, gradient: Any, weight: Any) -> list[Any]:
        """A gradient as it is; where there were no examples, one of no rows."""
        if gradient is None:
            batch = lookups.Lookup(of_batch=True)
            return gradients.zeros([gradients.Kind(gradients.Form.SPARSE, (batch,))], [weight])
        return [exchange.here(gradient)]

    def _sum_parts(self, ranks: tuple[int, ...], together: Sequence[int], axis: shape.Axis) -> None:
        """Add up gradients of which each rank along an axis has a part."""
        first = self._working[together[0]]
        keys = [key for key in first.gradients if axis in first.own.shards[key].summed]
        given, kinds, variables = {}, {}, {}
        for rank in together:
            actor = self._working[rank]
            variables[rank] = [actor.own.weights[key] for key in keys]
            with actor.fence():
                given[rank] = [exchange.here(actor.gradients[key]) for key in keys]
            kinds[rank] = list(map(actor.own.kind, keys, given[rank]))
        if keys and first.examples:
            for rank, sums in self._between.gradients(ranks, given, kinds, variables).items():
                self._working[rank].gradients |= dict(zip(keys, sums, strict=True))
                self._working[rank].did(exchange.parts(sums))

    def _sum_squares(
        self, ranks: tuple[int, ...], together: Sequence[int], axis: shape.Axis
    ) -> None:
        """Add up the squares of the gradients of variables that are cut over an axis."""

        def is_cut(rank: int) -> list[bool]:
            own = self._working[rank].own
            return [own.shards[key].layout.dimension(axis) is not None for key in own.trained]

        def squares(rank: int) -> tf.Tensor:
            self._finish(rank)
            found = self._finished[rank].squares
            return tf.where(is_cut(rank), found, tf.zeros_like(found))

        for rank, found in self._sum(ranks, together, squares).items():
            finished = self._finished[rank]
            with self._working[rank].fence():
                finished.squares = tf.where(is_cut(rank), found, finished.squares)

    def _sum_gradients(
        self,
        ranks: tuple[int, ...],
        together: Sequence[int],
        parts: Callable[[int], tf.Tensor] | None = None,
    ) -> dict[int, list[Any]]:
        """Add gradients up over the data axis; gives the sums of other parts, if there are any."""
        given, variables, also = {}, {}, {}
        for rank in together:
            actor = self._working[rank]
            variables[rank] = list(actor.own.trained.values())
            with actor.fence():
                given[rank] = [exchange.here(one) for one in actor.gradients.values()]
                if actor.examples:
                    self._kinds[rank] = list(map(actor.own.kind, actor.gradients, given[rank]))
                else:
                    given[rank] = gradients.zeros(self._kinds[rank], variables[rank])
                also[rank] = [] if parts is None else [parts(rank)]
        found = {}
        kinds = {rank: self._kinds[rank] for rank in together}
        for rank, sums in self._between.gradients(ranks, given, kinds, variables, also).items():
            actor = self._working[rank]
            actor.gradients = dict(zip(actor.gradients, sums, strict=False))
            actor.did(exchange.parts(sums))
            found[rank] = sums[len(actor.gradients) :]
        return found

    def _sum_all(self, ranks: tuple[int, ...], together: Sequence[int]) -> None:
        """Add up gradients and loss; their norms every rank knows then, as it has all of them."""
        found = self._sum_gradients(ranks, together, self._parts_of_loss)
        self._know_losses({rank: numbers for rank, (numbers,) in found.items()})
        for rank in together:
            with self._working[rank].fence():
                self._finish(rank, speaks_for_all=True)
                self._norms[rank] = self._parts_of_norm(rank)

    def _know_losses(self, found: Mapping[int, tf.Tensor]) -> None:
        """Take what `_parts_of_loss` sums up to, for each rank."""
        count = len(self._first.own.head.terms)
        for rank, numbers in found.items():
            actor = self._working[rank]
            self._losses[rank] = outcome.Loss(actor, numbers, count, self._told.shape[0])

    def _denominators(self, rank: int) -> tf.Tensor:
        return tf.stack(self._working[rank].denominators)

    def _parts_of_loss(self, rank: int) -> tf.Tensor:
        """What a rank adds to the loss, what its process tells, and what is seen of it."""
        actor = self._working[rank]
        own = actor.own
        penalty = outcome.penalty(own.trained, [key for key in own.trained if own.owns(key)])
        numbers = tf.stack([*actor.denominators, *actor.numerators])
        if not own.is_first:  # others compute the same
            numbers = tf.zeros_like(numbers)
        numbers = tf.concat([numbers, [penalty]], 0)
        told = self._told if actor is self._first else tf.zeros_like(self._told)
        return tf.concat([numbers, told, actor.watched()], 0)

    def _finish(self, rank: int, *, speaks_for_all: bool = False) -> None:
        """Complete the gradients of a rank, once the loss is known."""
        if rank not in self._finished:
            factor = self._losses[rank].factor if self._divides else None
            self._finished[rank] = outcome.Complete(
                self._working[rank], factor, speaks_for_all=speaks_for_all
            )

    def _parts_of_norm(self, rank: int) -> tf.Tensor:
        """How many gradients are not finite, and the sum of the squares of those of a rank."""
        self._finish(rank)
        finished = self._finished[rank]
        return tf.stack([finished.failed, finished.own_square])

    def _is_finite(self, rank: int) -> tf.Tensor:
        """Whether loss and gradients are finite; with loss scaling, gradients may overflow."""
        is_finite = tf.math.is_finite(self._losses[rank].total)
        if self._working[rank].own.optimizer.scales:
            return is_finite
        return is_finite & tf.equal(self._norms[rank][0], 0)

    def _update(self, rank: int, condition: tf.Tensor | None) -> None:
        """Change what belongs to a rank: weights, statistics, optimizer."""
        own = self._working[rank].own
        for key, value in self._working[rank].statistics.items():
            weight = own.weights[key]
            weight.assign(value if condition is None else tf.where(condition, value, weight.value))
        if condition is not None:
            for state, value in self._before[rank]:
                state.assign(tf.where(condition, state.value, value))
        norm = tf.sqrt(self._norms[rank][1])
        finished = self._finished[rank]

        def apply() -> tf.Tensor:
            own.optimizer.apply(finished.gradients, norm, tf.sqrt(finished.squares))
            return tf.constant(True)

        def leave() -> tf.Tensor:
            own.optimizer.overflowed()
            return tf.constant(False)

        if own.optimizer.scales:
            fits = tf.equal(self._norms[rank][0], 0)
            tf.cond(fits if condition is None else fits & condition, apply, leave)
        elif condition is not None:
            tf.cond(condition, apply, lambda: tf.constant(False))
        else:
            apply()
