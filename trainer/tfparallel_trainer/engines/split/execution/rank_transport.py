"""Communication of this process's ranks with each other and with those of other processes.

Within a process, a message is the tensor itself, and a sum is an addition on one of the devices.
TensorFlow orders both by their data. Everything else is a collective operation in a group of our
own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.engines.split.execution import microbatch_function
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import gradient_sums, lookups
from tfparallel_trainer.objective.gradient_sums import Kind

_CARRIED = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
"""The types that broadcasts take."""


class RankTransport:
    """The communicators of this process for all groups."""

    def __init__(self, partition: Partition, devices: Mapping[int, str]) -> None:
        """Take the device of each rank of this process."""
        self._partition = partition
        self._devices = devices
        self._keys = partition.keys()
        self._ends = {
            (ranks, rank): collectives.Communicator(
                key, len(ranks), ranks.index(rank), devices[rank]
            )
            for ranks, key in self._keys.items()
            for rank in ranks
            if rank in devices and not self._is_inside(ranks)
        }
        self._first = 0

    def begin(self, program: collectives.Program, variant: int = 0) -> None:
        """Start tracing a program. A variant is a trace whose messages have other shapes."""
        for end in self._ends.values():
            end.begin(program, variant)
        numbers = variant * self._partition.numbers()
        self._first = collectives.Program.PASS_ON << collectives.POSITION_BITS | numbers

    def send(self, source: int, target: int, number: Any, tensor: tf.Tensor) -> tf.Tensor:
        """Send a tensor to a rank of another process; returns what exists once it is received.

        `number` identifies the message within a step: an int, or a scalar int32 tensor in a loop.
        """
        carried = tf.cast(tensor, _carrier(tensor.dtype))

        def send(number: Any, tensor: tf.Tensor) -> tf.Tensor:
            return tf.raw_ops.CollectiveBcastSendV2(
                input=tensor, **self._arguments(source, target, number)
            )

        return _outside_loops(send, number, carried)

    def receive(
        self, source: int, target: int, number: Any, shape: Sequence[int], dtype: str
    ) -> tf.Tensor:
        """Receive a tensor from a rank of another process; `number` is that of its `send`."""
        kind = tf.as_dtype(dtype)

        def receive(number: Any) -> tf.Tensor:
            return tf.raw_ops.CollectiveBcastRecvV2(
                shape=tf.constant(list(shape), tf.int32),
                T=_carrier(kind),
                **self._arguments(source, target, number),
            )

        return tf.cast(tf.ensure_shape(_outside_loops(receive, number), shape), kind)

    def total(
        self, ranks: tuple[int, ...], summands: Mapping[int, Sequence[tf.Tensor]]
    ) -> dict[int, list[tf.Tensor]]:
        """Add up tensors of static shapes over ranks, from the summands of this process's ranks."""
        none: dict[int, list[Any]] = {rank: [] for rank in summands}
        return self.gradients(ranks, none, none, none, summands)

    def gradients(
        self,
        ranks: tuple[int, ...],
        local_gradients: Mapping[int, Sequence[Any]],
        kinds: Mapping[int, Sequence[Kind]],
        variables: Mapping[int, Sequence[Any]],
        also: Mapping[int, Sequence[tf.Tensor]] = MappingProxyType({}),
    ) -> dict[int, list[Any]]:
        """Add up gradients over ranks by kind, and then further tensors."""
        if not self._is_inside(ranks):
            totals: dict[int, list[Any]] = {}
            for rank, summands in local_gradients.items():
                end, others = self._ends[ranks, rank], also.get(rank, ())
                with tf.device(self._devices[rank]):
                    totals[rank] = gradient_sums.all_reduce(
                        end, summands, kinds[rank], variables[rank], others
                    )
            return totals
        parts = zip(*local_gradients.values(), strict=True)
        further = zip(*(also.get(rank, ()) for rank in local_gradients), strict=True)
        with tf.device(self._devices[ranks[0]]):
            sums = [
                add(gradient, [kinds[rank][index] for rank in local_gradients])
                for index, gradient in enumerate(parts)
            ]
            sums += [tf.add_n(tensors) for tensors in further]
        copies = {}
        for rank in ranks:
            with tf.device(self._devices[rank]):
                copies[rank] = [here(gradient) for gradient in sums]
        return copies

    def reduce_scatter(
        self, ranks: tuple[int, ...], summands: Mapping[int, Sequence[tf.Tensor]]
    ) -> dict[int, list[tf.Tensor]]:
        """Add up tensors [members, n] over ranks; each rank gets its row of each sum."""
        if not self._is_inside(ranks):
            return self._at_ends(ranks, summands, collectives.Communicator.reduce_scatter_all)
        rows = {}
        for position, rank in enumerate(ranks):
            with tf.device(self._devices[rank]):
                rows[rank] = [
                    tf.add_n([tensor[position] for tensor in tensors])
                    for tensors in zip(*summands.values(), strict=True)
                ]
        return rows

    def all_gather(
        self, ranks: tuple[int, ...], rows: Mapping[int, Sequence[tf.Tensor]]
    ) -> dict[int, list[tf.Tensor]]:
        """Give each rank the tensors [n] of all ranks: [members, n]."""
        if not self._is_inside(ranks):
            return self._at_ends(ranks, rows, collectives.Communicator.gather_all)
        gathered = {}
        for rank in ranks:
            with tf.device(self._devices[rank]):
                of_ranks = zip(*(rows[other] for other in ranks), strict=True)
                gathered[rank] = [tf.stack(tensors) for tensors in of_ranks]
        return gathered

    def _at_ends(
        self,
        ranks: tuple[int, ...],
        tensors: Mapping[int, Sequence[tf.Tensor]],
        operation: Callable[[collectives.Communicator, Sequence[tf.Tensor]], list[tf.Tensor]],
    ) -> dict[int, list[tf.Tensor]]:
        """The result of a group's operation for each rank of this process."""
        results = {}
        for rank, of_rank in tensors.items():
            with tf.device(self._devices[rank]):
                results[rank] = operation(self._ends[ranks, rank], of_rank)
        return results

    def _is_inside(self, ranks: Sequence[int]) -> bool:
        return all(rank in self._devices for rank in ranks)

    def _arguments(self, source: int, target: int, number: Any) -> dict[str, Any]:
        ranks = (min(source, target), max(source, target))
        return {
            "group_size": tf.constant(2, tf.int32),
            "group_key": tf.constant(self._keys[ranks], tf.int32),
            "instance_key": tf.convert_to_tensor(self._first + number, tf.int32),
        }


def add(parts: Sequence[Any], kinds: Sequence[Kind]) -> Any:
    """Add up gradients of one variable. Some may be None; sparse ones stay sparse."""
    pairs = [(part, kind) for part, kind in zip(parts, kinds, strict=True) if part is not None]
    if len(pairs) < 2:
        return pairs[0][0] if pairs else None
    if not all(isinstance(part, tf.IndexedSlices) for part, _ in pairs):
        return tf.add_n([tf.convert_to_tensor(part) for part, _ in pairs])
    divided = [lookups.divide(part, kind.sources) for part, kind in pairs]
    return lookups.join(lookups.add(divided), pairs[0][0].dense_shape)


def parts(gradients: Iterable[Any]) -> list[tf.Tensor]:
    """The tensors of which gradients consist."""
    tensors: list[tf.Tensor] = []
    for gradient in gradients:
        if gradient is not None:
            tensors += (
                [gradient.values, gradient.indices]
                if isinstance(gradient, tf.IndexedSlices)
                else [gradient]
            )
    return tensors


def here(gradient: Any) -> Any:
    """A copy of a gradient of any kind, on the current device."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
        )
    return tf.identity(gradient)


def _outside_loops(
    communicate: Callable[..., tf.Tensor], number: Any, *tensors: tf.Tensor
) -> tf.Tensor:
    """Communicate so that the other end may be in another iteration of a loop, or in none.

    TensorFlow takes two ends for one message only if their loops and iterations are the same, too.
    A function that is called in a loop is not in the loop itself.
    """
    if not tf.is_tensor(number):
        return communicate(number, *tensors)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (number, *tensors)]
    traced = tf.function(
        communicate, autograph=False, experimental_attributes=microbatch_function.SEPARATE
    ).get_concrete_function(*specs)
    result = traced(number, *tensors)
    # Calls would otherwise wait for each other, and messages may overlap.
    tf.compat.v1.get_default_graph().experimental_acd_manager.run_independently(result.op)
    return result


def _carrier(kind: tf.DType) -> tf.DType:
    """A type for broadcasts that holds all values of another type."""
    if kind in _CARRIED:
        return kind
    return tf.float32 if kind.is_floating else tf.int64
