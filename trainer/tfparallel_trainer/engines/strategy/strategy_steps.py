"""Traced functions that all replicas of a strategy run together.

Keras' optimizers clip a replica's own gradient and add up afterwards, so the update differs from
that of one process. So this module adds up gradients first. The optimizer then runs in a context
that does not reduce: it clips and applies the sum, the same on every replica.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batch_division, nest
from tfparallel_trainer.engines import engine
from tfparallel_trainer.objective import (
    evaluate,
    metric_sums,
    state,
    synchrony,
    tracing,
    train_step,
)
from tfparallel_trainer.objective.replica import Replica

MOST_TRACED = 32
"""Maximum number of cached functions: batches of ever new lengths would fill the memory."""


class ReplicatedModel:
    """A model within a strategy; replicas without examples get an empty batch."""

    def __init__(self, strategy: Any, module: user.Module, replica: Replica) -> None:
        self.module = module
        self.replica = replica
        self._strategy = strategy
        self._places = ranks_of_process(strategy)
        self._traced: dict[tuple[Any, ...], Any] = {}
        """Cached functions by what they run and the shapes of their arguments; the last used one is
        last."""

    @property
    def replicas(self) -> int:
        """Number of replicas in all processes."""
        return int(self._strategy.num_replicas_in_sync)

    def report(self) -> dict[str, float]:
        """The metrics over all replicas."""
        states = self._everywhere(
            "report", lambda replica: replica.data.sum_all(metric_sums.contributions(replica))
        )
        return metric_sums.results(self.replica, states)

    def share_state(self, numbers: Sequence[int]) -> list[int]:
        """Copy the first replica's state to every replica, and its numbers to every process."""
        start = tf.constant(list(numbers), tf.int64)
        (shared,) = self._everywhere(
            "state", lambda replica: [state.spread(replica, replica.state(), start)]
        )
        return [int(number) for number in np.atleast_1d(shared.numpy())]

    def share_statistics(self) -> None:
        """Copy the first replica's untrained weights to every replica."""
        if self.replica.statistics():
            nothing = tf.zeros((1,), tf.int64)
            self._everywhere(
                "statistics", lambda replica: [state.spread(replica, replica.statistics(), nothing)]
            )

    def trace(self, spec: Any) -> tracing.Trace:
        """Find the closures of a replica's step, without computing anything.

        Variables that the strategy itself manages are not closures.
        """

        def on_replica(part: Any) -> None:
            with NoReduceContext():
                tracing.compute(self._replica_in_context(), part)

        def on_all(part: Any) -> None:
            self._strategy.run(on_replica, args=(part,))

        with user.guard(self.module.path, "tracing a training step raised"):
            function = tf.function(on_all, autograph=False).get_concrete_function(spec)
        trace = tracing.of_graph(function.graph, tracing.variables_of(self.replica))
        closures = [
            closure
            for closure in trace.closures
            if not hasattr(closure.value, "_distributed_container")
        ]
        return dataclasses.replace(trace, closures=closures)

    def barrier(self) -> None:
        """Return once every replica has called it."""
        self._everywhere("barrier", lambda replica: [replica.data.sum(tf.ones((1,)))])

    def spread(self, give: Callable[[int], list[Any]]) -> Any:
        """Return each replica's own tensors, from its index in this process."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: give(self._places.index(int(context.replica_id_in_sync_group)))
        )

    def on_batch(
        self,
        what: str,
        run: Callable[..., list[tf.Tensor]],
        batch: batch_division.Batch,
        spec: Any,
        *others: Any,
    ) -> list[tf.Tensor]:
        """Run a function on every replica's part of a batch; returns the first replica's result.

        `run` gets the replica, its part, whether each replica has examples, and the other
        arguments. Each pattern of sizes has its own trace: replicas of different sizes are traced
        one by one, and TPUs compile fixed shapes.
        """
        everywhere = batch.examples >= self.replicas
        parts = [train_step.nothing(spec) if part is None else part for part in batch.parts]
        leaves = [[tf.convert_to_tensor(leaf) for leaf in nest.leaves(part)] for part in parts]
        inputs = (self.spread(leaves.__getitem__), *others)
        key = (what, everywhere, *(tuple(leaf.shape) for part in leaves for leaf in part))

        def on_replica(part_leaves: Sequence[tf.Tensor], *others: Any) -> list[tf.Tensor]:
            part = nest.packed(spec, part_leaves)
            return run(self._replica_in_context(), part, everywhere, *others)

        results: list[tf.Tensor] = self._function(key, on_replica, inputs)(*inputs)
        return results

    def _everywhere(self, what: str, run: Callable[[Replica], list[tf.Tensor]]) -> list[tf.Tensor]:
        """Run a function without examples on every replica; returns the first replica's result."""
        function = self._function((what,), lambda: run(self._replica_in_context()), ())
        results: list[tf.Tensor] = function()
        return results

    def _function(
        self, key: tuple[Any, ...], on_replica: Callable[..., list[tf.Tensor]], inputs: Any
    ) -> Any:
        """Return a function that runs on every replica, traced once for each cached key."""

        def on_all(*arguments: Any) -> list[tf.Tensor]:
            outcomes = self._strategy.run(on_replica, args=arguments)
            return [self._strategy.experimental_local_results(output)[0] for output in outcomes]

        function = self._traced.pop(key, None)
        if function is None:
            function = tf.function(on_all, autograph=False)
            with user.guard(self.module.path, f"tracing {key[0]} raised"):
                function.get_concrete_function(*inputs)
        self._traced[key] = function
        if len(self._traced) > MOST_TRACED:
            del self._traced[next(iter(self._traced))]
        return function

    def _replica_in_context(self) -> Replica:
        context = tf.distribute.get_replica_context()
        return dataclasses.replace(self.replica, data=StrategyCommunicator(context))


def ranks_of_process(strategy: Any) -> tuple[int, ...]:
    """The numbers of this process's replicas among all of the strategy."""
    numbers: list[int] = []

    def note(context: Any) -> tf.Tensor:
        numbers.append(int(context.replica_id_in_sync_group))
        return tf.zeros(())

    strategy.experimental_distribute_values_from_function(note)
    return tuple(numbers)


class StrategyTrainStep(engine.Step):
    """The step of all replicas of a strategy, on batches of a structure (tf.TensorSpec)."""

    def __init__(
        self,
        traced: ReplicatedModel,
        spec: Any,
        targets: Any = None,
        *,
        omitted: Sequence[str] = (),
    ) -> None:
        """Take what is not compared with one process; empty if the job asks for no comparison."""
        super().__init__(traced.module, traced.replica, traced.replicas, targets)
        self._steps = traced
        self._spec = spec
        if omitted:
            self.referee = Omission(omitted)

    def compute(
        self,
        step: int,
        batch: batch_division.Batch,
        requests: engine.Numbers,
        *,
        gives_metrics: bool,
    ) -> train_step.StepOutput:
        """Run the step on all replicas."""
        first, number = tf.constant(requests, tf.float64), tf.constant(step, tf.int64)
        spread = self._steps.spread(lambda index: [tf.zeros_like(first) if index else first])
        (vector,) = self._steps.on_batch(
            "a training step", _step, batch, self._spec, number, spread
        )
        return train_step.StepOutput.unpack(vector.numpy(), len(self._replica.terms))


class StrategyEngine(engine.Synchronous):
    """Steps of all replicas of a strategy, which adds up their metrics."""

    def __init__(
        self,
        traced: ReplicatedModel,
        step: StrategyTrainStep,
        evaluator: evaluate.Evaluator | None,
        examples: batch_division.BatchSource | None,
    ) -> None:
        super().__init__([traced.replica], step, evaluator, examples)
        self._steps = traced

    def reduce_metrics(self) -> dict[str, float]:
        """The metrics over all replicas."""
        return self._steps.report()

    def barrier(self) -> None:
        """Return once every replica has called it."""
        self._steps.barrier()


class Omission:
    """Reports with the first step of an attempt why steps are not compared with one process."""

    def __init__(self, omitted: Sequence[str]) -> None:
        self._omitted = omitted

    def __call__(
        self, step: int, batch: batch_division.Batch, changed: bool = False
    ) -> engine.Check | None:
        """Return an empty check of a step, by its number from 1."""
        omitted, self._omitted = self._omitted, []
        return functools.partial(verification.Check, step, {}, omitted) if omitted else None


class StrategyEvaluator(evaluate.Evaluator):
    """Evaluates the replicas of this process together with those of its peers."""

    def __init__(self, traced: ReplicatedModel, spec: Any) -> None:
        replicas = [traced.replica]
        averaged = functools.partial(evaluate.averaged, replicas)
        super().__init__(replicas, traced.share_statistics, averaged)
        self._steps = traced
        self._spec = spec

    def sums(self, batch: batch_division.Batch) -> Any:
        """Over all replicas."""
        (total,) = self._steps.on_batch("the evaluation", _sums, batch, self._spec)
        return total.numpy()

    def results(self, sums: Any) -> dict[str, float]:
        """Over all replicas."""
        return {**evaluate.losses(self._replicas[0], sums), **self._steps.report()}


def _step(
    replica: Replica,
    part: Any,
    everywhere: bool,
    number: tf.Tensor,
    requests: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    """A `StepOutput` as a vector."""
    rank_input = train_step.RankInput(
        part=part, step=number, requests=requests[0], maybe_empty=not everywhere
    )
    with _kept(replica, part, everywhere):
        results = []
        for phase, shared in train_step.compute_phases(replica, rank_input):
            results.append(shared)
            with NoReduceContext():
                phase.optimizer.apply(shared.gradients, phase.variables)
    return [train_step.combine_phases(results).pack()]


def _sums(replica: Replica, part: Any, everywhere: bool) -> list[tf.Tensor]:
    with _kept(replica, part, everywhere):
        return [replica.data.sum(evaluate.sums_of(replica, part))]


@contextlib.contextmanager
def _kept(replica: Replica, part: Any, everywhere: bool) -> Iterator[None]:
    """Restore what an empty batch changes: its statistics are NaN."""
    before = None if everywhere else state.Memory(replica, updates_too=False)
    yield
    if before is not None:
        before.put_back_unless(tf.shape(nest.leaves(part)[0])[0] > 0)


class StrategyCommunicator(collectives.Communicator):
    """A replica's communicator within its strategy; create one in each replica's trace."""

    def __init__(self, context: Any) -> None:
        super().__init__(0, 1, 0, "")
        self.size = context.num_replicas_in_sync
        self.index = synchrony.number(context)
        self._context = context

    def begin(self, program: collectives.Program, variant: int = 0) -> None:
        """Nothing to do: TensorFlow numbers what a strategy sends."""

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Add a tensor up over the replicas."""
        if self.size == 1:
            return tf.identity(tensor)
        with self._context:  # the forward pass may run in a context of its own
            return self._context.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    def _is_gathered(self, tensors: Sequence[tf.Tensor]) -> bool:
        """No: a strategy gathers no bits."""
        return False

    def only_first(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor on the first replica, zeros on the others."""
        return tf.where(tf.equal(self.index, 0), tensor, tf.zeros_like(tensor))

    def gather_rows(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Join tensors [n, …] over the replicas, n being each one's own."""
        if self.size == 1:
            return list(tensors)
        with self._context:
            return [self._context.all_gather(tensor, axis=0) for tensor in tensors]


class NoReduceContext(synchrony.NestedReplicaContext):
    """A replica context in which gradients are already sums; enter it around `apply`."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Return the value, which is the same on all replicas."""
        return value
