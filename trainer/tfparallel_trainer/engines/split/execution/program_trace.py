"""Traces the lists of a process's ranks into the graph of a step or of an evaluation.

Each rank executes its list in the order that `ordering.OrderingScope` keeps. Messages between
processes may overlap with computation. That relaxes the order of lists that cannot deadlock, so
the relaxed lists cannot deadlock either.

What repeats for one microbatch after the other becomes a loop. TensorFlow prepares each call of a
function by itself, so a step without a loop would start more slowly with each microbatch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.execution import rank_transport, stage_worker
from tfparallel_trainer.engines.split.pipeline import cutting, interleaving, programs, schedule
from tfparallel_trainer.engines.split.pipeline.partition import Partition

_PARALLEL_ITERATIONS = 2
"""While an iteration of a loop ends, messages of the next one may be under way."""

Reduce = Callable[[tuple[int, ...], programs.Sum, Sequence[int]], None]
"""Adds up over ranks. Takes the group, and its ranks in this process."""


def trace(
    partition: Partition,
    lists: Mapping[int, Sequence[programs.Step]],
    workers: Mapping[int, stage_worker.StageWorker],
    between: rank_transport.RankTransport,
    reduce: Reduce | None = None,
) -> None:
    """Trace the lists of this process's ranks; a ValueError if they wait in a circle."""
    operations = interleaving.interleave({rank: lists[rank] for rank in workers})
    sizes = {rank: worker.sizes for rank, worker in workers.items()}
    tracer = _Tracer(partition, workers, between, reduce)
    for stretch in interleaving.find_loops(operations, sizes):
        if stretch.repeats > 1:
            tracer.repeat(stretch)
        else:
            tracer.execute(stretch.operations)
    for worker in workers.values():
        worker.ordering.join_messages()


class _Tracer:
    def __init__(
        self,
        partition: Partition,
        workers: Mapping[int, stage_worker.StageWorker],
        between: rank_transport.RankTransport,
        reduce: Reduce | None,
    ) -> None:
        self._partition = partition
        self._workers = workers
        self._between = between
        self._reduce = reduce
        self._iteration: Any = 0
        """The current iteration of a loop, a scalar int32; 0 outside a loop."""

    def execute(self, operations: Sequence[interleaving.Operation]) -> None:
        """Trace operations, one after the other."""
        for operation in operations:
            match operation.step:
                case schedule.Action() as action:
                    (rank,) = operation.ranks
                    self._workers[rank].work(action)
                case programs.Collective((source, target), programs.Message() as message):
                    self._transfer(source, target, message)
                case programs.Collective(ranks, programs.Sum() as total) if self._reduce:
                    for rank in operation.ranks:
                        self._workers[rank].ordering.join_messages()
                    self._reduce(ranks, total, operation.ranks)

    def repeat(self, stretch: interleaving.Stretch) -> None:
        """Trace a loop."""
        ranks = {rank for operation in stretch.operations for rank in operation.ranks}
        workers = [self._workers[rank] for rank in sorted(ranks)]
        for worker in workers:
            worker.begin_loop(stretch.repeats)
        before = [worker.carried() for worker in workers]

        def body(
            iteration: tf.Tensor, carried: list[list[Any]]
        ) -> tuple[tf.Tensor, list[list[Any]]]:
            self._iteration = iteration
            for worker, slots, tensors in zip(workers, before, carried, strict=True):
                worker.begin_iteration(iteration, dict(zip(slots, tensors, strict=True)))
            self.execute(stretch.operations)
            after = [worker.end_iteration() for worker in workers]
            return iteration + 1, [
                [tensors[slot] for slot in slots]
                for slots, tensors in zip(before, after, strict=True)
            ]

        _, results = tf.while_loop(
            lambda iteration, _: iteration < stretch.repeats,
            body,
            (tf.constant(0), [list(slots.values()) for slots in before]),
            parallel_iterations=_PARALLEL_ITERATIONS,
        )
        self._iteration = 0
        for worker, slots, tensors in zip(workers, before, results, strict=True):
            worker.end_loop(stretch.repeats, dict(zip(slots, tensors, strict=True)))

    def _transfer(self, source: int, target: int, message: programs.Message) -> None:
        """Trace this process's part of a message: send it, receive it, or pass it on."""
        first, second = self._partition.stage_of(source), self._partition.stage_of(target)
        if message.work is schedule.Pass.BACKWARD:  # a gradient goes in the opposite direction
            first, second = second, first
        address = (cutting.Transfer(first, second, message.tensor), message)
        number = self._partition.number(message, address[0]) + self._iteration
        sender, receiver = self._workers.get(source), self._workers.get(target)
        tensor: Any = None
        if sender is not None:
            tensor = sender.take_message(address)
            if receiver is None:
                with sender.ordering.send() as sent:
                    sent.append(self._between.send(source, target, number, tensor))
        if receiver is not None:
            with receiver.ordering.receive() as received:
                if sender is None:
                    dims, dtype = receiver.shape_of(address)
                    tensor = self._between.receive(source, target, number, dims, dtype)
                received.append(tf.identity(tensor))
            receiver.store_message(address, received[0])
