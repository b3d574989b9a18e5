"""What all replicas of a strategy run together, as traced functions."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import engine, user
from tfparallel_trainer.data import feed, nest
from tfparallel_trainer.distributed import exchange, places
from tfparallel_trainer.step import evaluate, finite, metrics, replica, state, train

_Leaves = Sequence[tf.Tensor]


class Steps:
    """A model whose variables a strategy has made, and the strategy that runs it.

    A replica without examples in a step takes part with a batch of none.
    """

    def __init__(self, strategy: Any, module: user.Module, own: replica.Replica) -> None:
        self._strategy = strategy
        self._module = module
        self._own = own
        self._places = places.of_process(strategy)
        self._traced: dict[tuple[Any, ...], Any] = {}

    def train(self, spec: Any) -> engine.Step:
        """Give what makes a step on batches of a structure (tf.TensorSpec [None, …])."""

        def run(number: tf.Tensor, flags: _Leaves, part: Any, everywhere: bool) -> list[tf.Tensor]:
            return _step(self._replica(), part, number, flags[0], everywhere)

        def make(step: int, batch: feed.Batch, asked: frozenset[train.Flag]) -> train.Outcome:
            wanted = np.array([flag in asked for flag in train.Flag], np.float64)
            flags = places.spread(
                self._strategy,
                self._places,
                lambda place: [tf.constant(wanted if place == 0 else np.zeros_like(wanted))],
            )
            number = tf.constant(step, tf.int64)
            outcome = self._on_batch("a training step", run, batch, spec, number, flags)
            total, values, heard, is_finite = (tensor.numpy() for tensor in outcome)
            return train.Outcome(
                loss=float(total),
                terms=self._own.by_output(values),
                flags=frozenset(flag for flag in train.Flag if heard[flag] > 0),
                finite=bool(is_finite),
            )

        return make

    def sums(self, batch: feed.Batch, spec: Any) -> Any:
        """Numerators and denominators of the loss over a batch [2, terms]; feeds the metrics."""

        def run(part: Any, everywhere: bool) -> list[tf.Tensor]:
            own = self._replica()
            with _kept(own, part, everywhere):
                return [own.data.sum(evaluate.sums_of(own, part))]

        (total,) = self._on_batch("the evaluation", run, batch, spec)
        return total.numpy()

    def report(self) -> dict[str, float]:
        """The metrics over all replicas."""
        states = self._everywhere(
            "report", lambda own: own.data.sum_all(metrics.contributions(own))
        )
        return metrics.results(self._own, states)

    def share_state(self, numbers: Sequence[int]) -> list[int]:
        """Give every replica the state of the first one, and every process its numbers."""
        given = tf.constant(list(numbers), tf.int64)
        (found,) = self._everywhere("state", lambda own: [state.spread(own, own.state(), given)])
        return [int(number) for number in np.atleast_1d(found.numpy())]

    def share_statistics(self) -> None:
        """Give every replica the first one's weights that are not trained."""
        if self._own.statistics():
            nothing = tf.zeros((1,), tf.int64)
            self._everywhere(
                "statistics", lambda own: [state.spread(own, own.statistics(), nothing)]
            )

    def barrier(self) -> None:
        """Return when every replica has come here."""
        self._everywhere("barrier", lambda own: [own.data.sum(tf.ones((1,)))])

    def _on_batch(
        self,
        what: str,
        run: Callable[..., list[tf.Tensor]],
        batch: feed.Batch,
        spec: Any,
        *others: Any,
    ) -> list[tf.Tensor]:
        """Run something on every replica's part of a batch; give what the first one gives.

        There is one function for each pattern of sizes: replicas of different sizes are traced one
        by one, and TPUs compile fixed shapes.
        """
        everywhere = batch.examples >= self._strategy.num_replicas_in_sync
        parts = [train.nothing(spec) if part is None else part for part in batch.parts]
        leaves = [[tf.convert_to_tensor(one) for one in nest.leaves(part)] for part in parts]
        given = (*others, places.spread(self._strategy, self._places, leaves.__getitem__))
        key = (what, everywhere, *(tuple(one.shape) for part in leaves for one in part))
        if key not in self._traced:

            def on_replica(*arguments: Any) -> list[tf.Tensor]:
                *rest, own_leaves = arguments
                return run(*rest, nest.packed(spec, own_leaves), everywhere)

            with user.guard(self._module.path, f"tracing {what} raised"):
                self._traced[key] = self._function(on_replica)
                self._traced[key].get_concrete_function(*given)
        results: list[tf.Tensor] = self._traced[key](*given)
        return results

    def _everywhere(
        self, what: str, run: Callable[[replica.Replica], list[tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Run something without examples on every replica; give what the first one gives."""
        if (what,) not in self._traced:
            self._traced[what,] = self._function(lambda: run(self._replica()))
        results: list[tf.Tensor] = self._traced[what,]()
        return results

    def _function(self, on_replica: Callable[..., list[tf.Tensor]]) -> Any:
        def on_all(*arguments: Any) -> list[tf.Tensor]:
            found = self._strategy.run(on_replica, args=arguments)
            return [places.first(self._strategy, one) for one in found]

        return tf.function(on_all, autograph=False)

    def _replica(self) -> replica.Replica:
        context = tf.distribute.get_replica_context()
        return dataclasses.replace(self._own, data=exchange.Exchange(context))


def _step(
    own: replica.Replica, part: Any, number: tf.Tensor, flags: tf.Tensor, everywhere: bool
) -> list[tf.Tensor]:
    with _kept(own, part, everywhere):
        found = train.of_rank(own, part, number, flags, maybe_empty=not everywhere)
    with exchange.Summed():
        own.optimizer.apply(found.gradients, own.model.trainable_variables)
    return [found.loss, found.terms, found.flags, found.finite]


@contextlib.contextmanager
def _kept(own: replica.Replica, part: Any, everywhere: bool) -> Iterator[None]:
    """Put back what a batch of no examples changes: statistics of nothing are no numbers."""
    before = None if everywhere else finite.Memory(own)
    yield
    if before is not None:
        before.put_back_unless(tf.shape(nest.leaves(part)[0])[0] > 0)
