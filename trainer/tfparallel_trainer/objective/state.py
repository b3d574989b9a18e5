"""Shares the state of replicas, checks it, and restores it if a step is left out."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfparallel_trainer.comms import agreement, collectives
from tfparallel_trainer.objective import eager_options, gradient_sums, packed_updates, tracing
from tfparallel_trainer.objective.replica import Replica

BUCKET_BYTES = 64 * 2**20
"""Bytes that replicas add up at once. The whole state in one piece would be copied in full."""

_Result = TypeVar("_Result")
_SUMMED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
"""The types that collective operations add up."""
_BITS = {1: tf.uint8, 2: tf.uint16, 4: tf.int32, 8: tf.int64}
"""Integers by their sizes. Other numbers are shared as bits of these."""


def on_each(
    replicas: Sequence[Replica],
    program: collectives.Program,
    run: Callable[[Replica], _Result],
    variant: int = 0,
) -> list[_Result]:
    """Trace a program of all ranks: `run` for each replica of this process, on its device."""
    results = []
    for local_replica in replicas:
        with tf.device(local_replica.device):
            local_replica.data.begin(program, variant)
            results.append(run(local_replica))
    return results


def share(replicas: Sequence[Replica], numbers: Sequence[int]) -> list[int]:
    """Copy the first replica's state to every replica; return the numbers of its process.

    Replicas whose initial weights follow from a seed have the same state already: none is sent.
    """
    if replicas[0].data.size == 1:
        return list(numbers)
    rows = [tf.constant([*numbers, _digest(replica)], tf.int64) for replica in replicas]
    table = _gather(replicas, rows).numpy()
    if (table[:, -1] != table[0, -1]).any():
        with eager_options.unoptimized():
            sharing(replicas, collectives.Program.SHARE_STATE)()
    return [int(number) for number in table[0, :-1]]


def _digest(replica: Replica) -> int:
    arrays = (tf.convert_to_tensor(variable).numpy() for variable in replica.state())
    return agreement.digest("\n".join(map(tracing.describe_array, arrays)))


def _gather(replicas: Sequence[Replica], rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """The rows of all ranks [ranks, n], from one of each replica of this process."""

    def run(rows: Sequence[tf.Tensor]) -> tf.Tensor:
        remaining = iter(rows)
        return on_each(
            replicas,
            collectives.Program.SHARE_STATE,
            lambda rank_replica: rank_replica.data.gather(next(remaining)),
            variant=1,
        )[0]

    return tf.function(run, autograph=False)(rows)


def sharing(
    replicas: Sequence[Replica],
    program: collectives.Program = collectives.Program.SHARE_CHANGES,
    part: Callable[[Replica], list[Any]] = Replica.state,
    variant: int = 0,
) -> Callable[..., Any]:
    """Return a function that copies the first replica's state, or a part of it, to all.

    It may take numbers, int64, and returns those of the first replica. Each part that a program
    shares has its own variant.
    """

    def run(numbers: Any = (0,)) -> tf.Tensor:
        shared = tf.convert_to_tensor(numbers, tf.int64)
        return on_each(
            replicas,
            program,
            lambda rank_replica: spread(rank_replica, part(rank_replica), shared),
            variant,
        )[0]

    traced: Callable[..., Any] = tf.function(run, autograph=False)
    return traced


def sharing_statistics(replicas: Sequence[Replica]) -> Callable[[], Any]:
    """Return a function that copies the first replica's untrained weights to all.

    Each replica gathers statistics (of BatchNormalization) by itself. A checkpoint saves the first
    replica's, so evaluations have to use these. If no copy is needed, the function does nothing.
    """
    traced = sharing(replicas, collectives.Program.SHARE_STATISTICS, Replica.statistics)
    first = replicas[0]
    return lambda: traced() if first.data.size > 1 and first.statistics() else None


def barrier(replicas: Sequence[Replica]) -> Callable[[], Any]:
    """Return a function that returns once every rank has called it."""

    def run() -> list[tf.Tensor]:
        program = collectives.Program.BARRIER
        return on_each(replicas, program, lambda rank_replica: rank_replica.data.sum(tf.ones((1,))))

    traced: Callable[[], Any] = tf.function(run, autograph=False)
    return traced


def finiteness(replica: Replica) -> Callable[[], bool]:
    """Return a function that checks whether all trained weights are finite, the same everywhere."""

    def run() -> tf.Tensor:
        with tf.device(replica.device):
            weights = replica.model.trainable_variables
            return gradient_sums.all_finite([tf.convert_to_tensor(weight) for weight in weights])

    traced = tf.function(run, autograph=False)
    return lambda: bool(traced().numpy())


def spread(replica: Replica, variables: Sequence[Any], numbers: tf.Tensor) -> tf.Tensor:
    """Assign the first replica's values, one bucket at a time; return its numbers."""
    shared = replica.data.sum(replica.data.only_first(numbers))
    before = [shared]
    sums: dict[int, list[tf.Tensor]] = {}
    for bucket in _buckets(variables):
        with tf.control_dependencies(before):
            pieces = [replica.data.only_first(_summable(piece.read())) for piece in bucket]
            before = replica.data.sum_all(pieces)
            for piece, value in zip(bucket, before, strict=True):
                restored = _unpack(value, tf.as_dtype(piece.variable.dtype))
                sums.setdefault(id(piece.variable), []).append(restored)
                if piece.is_last:
                    parts = sums.pop(id(piece.variable))
                    whole = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
                    piece.variable.assign(tf.reshape(whole, piece.variable.shape))
    return shared


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of a variable, in the order in which they lie in memory."""

    variable: Any
    start: int
    stop: int
    is_last: bool

    def read(self) -> tf.Tensor:
        values = tf.reshape(tf.convert_to_tensor(self.variable), [-1])
        if self.start == 0 and self.is_last:
            return values
        return values[self.start : self.stop]


def _buckets(variables: Sequence[Any]) -> Iterator[list[_Piece]]:
    """Divide variables into pieces, as many at a time as BUCKET_BYTES hold."""
    bucket: list[_Piece] = []
    room = BUCKET_BYTES
    for variable in variables:
        dtype = tf.as_dtype(variable.dtype)
        width = dtype.size if dtype in _SUMMED else max(dtype.size, tf.int32.size)
        size, start = math.prod(variable.shape), 0
        while True:
            stop = min(size, start + room // width)
            if stop > start or size == 0:
                bucket.append(_Piece(variable, start, stop, is_last=stop == size))
                room -= width * (stop - start)
            if stop == size:
                break
            yield bucket
            bucket, room, start = [], BUCKET_BYTES, stop
    if bucket:
        yield bucket


def _summable(values: tf.Tensor) -> tf.Tensor:
    """Convert values to a type that collective operations add up; `_unpack` converts back."""
    if values.dtype in _SUMMED:
        return values
    if values.dtype != tf.bool:
        values = tf.bitcast(values, _BITS[values.dtype.size])
    return values if values.dtype in _SUMMED else tf.cast(values, tf.int32)


def _unpack(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Undo `_summable`."""
    if values.dtype == dtype or dtype == tf.bool:
        return tf.cast(values, dtype)
    return tf.bitcast(tf.cast(values, _BITS[dtype.size]), dtype)


class Memory:
    """The values, before the forward pass, of what it changes: statistics and metrics.

    For one trace.
    """

    def __init__(self, replica: Replica, *, updates_too: bool = True) -> None:
        """Record all values, or only those that ranks do not join (see `updates`)."""
        self._replica = replica
        updates = replica.updates.weights(replica.model) if replica.updates else []
        weights = {id(variable): variable for variable in (*replica.statistics(), *updates)}
        for variable in () if updates_too else updates:
            del weights[id(variable)]
        changed = [*weights.values(), *replica.model.metrics_variables]
        self._before = [(variable, tf.identity(variable.value)) for variable in changed]

    def apply_if(self, condition: tf.Tensor, gradients: Sequence[Any], variables: Any) -> None:
        """Apply the gradients if the condition holds, else restore everything."""
        self.put_back_unless(condition)

        def apply() -> tf.Tensor:
            packed_updates.apply(self._replica.optimizer, gradients, variables)
            return tf.constant(True)

        tf.cond(condition, apply, lambda: tf.constant(False))

    def put_back_unless(self, condition: tf.Tensor) -> None:
        """Restore everything unless the condition holds."""
        for variable, value in self._before:
            variable.assign(tf.where(condition, variable.value, value))
