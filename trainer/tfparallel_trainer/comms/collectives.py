"""Collective operations of one rank within one group of the mesh.

Built on TensorFlow's public `tf.raw_ops.Collective*V2` with group keys of our own. Any subset of
ranks can form a group, in one process or in many. Three rules keep every rank in step:

* Each group has an ordering token per rank, so its operations run in the order they were traced. On
  GPUs that use NCCL, all groups of a rank share one token. NCCL runs the operations of a GPU one
  after the other, so all members have to start the operations of two groups in the same order.
  Ranks trace their programs in an order in which each may wait for the others.
* An operation's instance key follows from its program and its position there, never from a counter
  of traces. So a rank that traces a program again still matches the others.
* No operation has a time limit of TensorFlow's own. Each would keep a thread asleep until its
  limit, even after its end, so a few thousand steps exhaust the machine's threads. Lost peers are
  noticed by TensorFlow's heartbeat and `comms.cluster`.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Self

import tensorflow as tf

from tfparallel_trainer.comms import shape, wait_timer

PROCESSES_KEY = 1 << 13
"""Key of the group that has one rank of each process; below those of all meshes."""

POSITION_BITS = 24
_VARIANT_BITS = 18
MAX_VARIANTS = 1 << (POSITION_BITS - _VARIANT_BITS)
"""Maximum number of traces of one program with different shapes."""

GATHERED_BYTES = 8 << 20
"""Bytes of a whole group up to which a gather and local sums are faster than a ring of sums."""
BUCKET_BYTES = 4 << 20
"""Of tensors that are summed together where a ring sums them; a larger tensor is one by itself."""
_WORD = tf.int32
"""The type in which bits of numbers are gathered."""

_MAX_POWER = 40
"""Rows that are gathered at once are at most 2**(_MAX_POWER - 1) on each rank."""


class Program(enum.IntEnum):
    """Programs that ranks run together; each traces its operations in a fixed order."""

    AGREE = 0
    SHARE_STATE = 1
    TRAIN = 2
    REPORT = 3
    BARRIER = 4
    SHARE_STATISTICS = 5
    TELL = 6
    SHARE_CHANGES = 7
    DECIDE = 8
    PASS_ON = 9
    EVALUATE = 10
    LOOK = 11
    ANNOUNCE = 12
    IDENTIFY = 13
    VERIFY = 14
    SAMPLE = 15
    COMPARE = 16
    COMPARE_SIZES = 17
    COMPARE_MODELS = 18
    COMPARE_PARTS = 19
    SHARE_AVERAGES = 20
    TRANSFER = 21
    COMPARE_PACES = 22


class Hint(enum.StrEnum):
    """The implementation of an operation, in TensorFlow's words."""

    NCCL = "nccl"
    """From GPU to GPU."""
    AUTO = "auto"
    """By the memory of the hosts and gRPC."""
    RING = "ring"
    """The same, for CPUs."""


_NCCL_TYPES = frozenset({tf.float16, tf.float32, tf.float64, tf.int32, tf.int64})
"""Types that TensorFlow passes to NCCL correctly; it would pass others as float32."""

_orders: dict[str, Any] = {}
"""The ordering token of each GPU that uses NCCL."""

_uses_nccl = False


def use_nccl(uses: bool) -> None:
    """Choose whether the communicators of GPUs that are built from now on use NCCL.

    All processes of a cluster must choose the same. The choice holds for the whole process, as
    TensorFlow's settings do.
    """
    global _uses_nccl
    _uses_nccl = uses


def choose_hint(device: str, uses_nccl: bool) -> Hint:
    """Return the hint for the groups of a device, whose members are all of one kind."""
    if ":GPU:" not in device:
        return Hint.RING
    return Hint.NCCL if uses_nccl else Hint.AUTO


class Communicator:
    """One rank's access to a group; all members make the same calls in the same order.

    `key` is a number that only this group has; the numbers after it are for its pairs (see
    `shape.pair_key`). `index` is this rank's position in it. Without a hint, `use_nccl` decides.
    """

    def __init__(
        self, key: int, size: int, index: int, device: str, hint: Hint | None = None
    ) -> None:
        self.size = size
        self.index = index
        """Position of this rank within the group."""
        self.timer: wait_timer.WaitTimer | None = None
        """Measures how long this rank waits for the sums of training steps; None: nothing does."""
        self._key = key
        self._hint = choose_hint(device, _uses_nccl) if hint is None else hint
        self._program = Program.AGREE
        self._position = 0
        self._token: Any = None
        if size > 1:
            self._token = _build_token(device, self._hint)

    @classmethod
    def for_rank(cls, group: shape.Group, rank: int, device: str) -> Self:
        """Build a rank's communicator for a group of the mesh; its operations run on `device`."""
        return cls(group.key, len(group.ranks), group.ranks.index(rank), device)

    def begin(self, program: Program, variant: int = 0) -> None:
        """Start tracing a program; call it first in the function that is traced.

        The variant, below MAX_VARIANTS, tells apart traces whose tensors have other shapes.
        """
        self._program = program
        self._position = variant << _VARIANT_BITS

    @property
    def has_fast_pairs(self) -> bool:
        """Whether `send_receive` exchanges tensors faster than `all_to_all`.

        Pairs never use NCCL.
        """
        return self._hint is not Hint.NCCL and self.size <= shape.MAX_PAIRED

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """All-reduce (sum) a tensor of the same shape and type on every member."""
        if self.size == 1:
            return tf.identity(tensor)
        return tf.raw_ops.CollectiveReduceV2(
            input=tensor, merge_op="Add", final_op="Id", **self._arguments(tensor.dtype)
        )

    def only_first(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor on the first member, zeros elsewhere, so that a sum broadcasts it."""
        return tensor if self.index == 0 else tf.zeros_like(tensor)

    def gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """All-gather a tensor of static shape: [members, …] in the group's order."""
        if self.size == 1:
            return tensor[tf.newaxis]
        stacked = tf.raw_ops.CollectiveGatherV2(
            input=tensor[tf.newaxis], **self._arguments(tensor.dtype)
        )
        return tf.ensure_shape(stacked, [self.size, *tensor.shape])

    def all_to_all(self, tensor: tf.Tensor) -> tf.Tensor:
        """Send row i of a tensor [members, …] of static shape to member i, and receive likewise."""
        if self.size == 1:
            return tf.identity(tensor)
        received = tf.raw_ops.CollectiveAllToAllV2(input=tensor, **self._arguments(tensor.dtype))
        return tf.ensure_shape(received, tensor.shape)

    def gather_rows(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Concatenate tensors [n, …] over the group, where n differs by member: [sum of n, …]."""
        if self.size == 1:
            return list(tensors)
        one_hot = tf.one_hot(self.index, self.size, dtype=tf.int64)
        counts = self.sum(one_hot * tf.shape(tensors[0], tf.int64)[0])
        # Members must bring one shape, and TensorFlow remembers an instance's shape: so rows are
        # padded to a power of two, and each power has an instance key of its own.
        power = _power_of_two(tf.reduce_max(counts))
        rows = tf.bitwise.left_shift(tf.ones((), tf.int64), tf.cast(power, tf.int64))
        mask = tf.sequence_mask(counts, rows)
        joined = []
        for tensor in tensors:
            rest_rank = tensor.shape.rank - 1
            fill = rows - tf.shape(tensor, tf.int64)[0]
            padded = tf.pad(tensor, [[0, fill], *([[0, 0]] * rest_rank)])
            stacked = tf.raw_ops.CollectiveGatherV2(
                input=padded[tf.newaxis], **self._arguments(tensor.dtype, power, _MAX_POWER)
            )
            shaped = tf.ensure_shape(stacked, [self.size, None, *tensor.shape[1:]])
            joined.append(tf.boolean_mask(shaped, mask))
        return joined

    def send_receive(
        self,
        routes: Sequence[tuple[int, int]],
        tensors: Mapping[int, tf.Tensor],
        shapes: Mapping[int, Sequence[int]],
        dtype: tf.DType,
    ) -> tuple[dict[int, tf.Tensor], list[tf.Operation]]:
        """Send tensors from one member to another, point to point.

        Messages do not wait for each other. Each pair of members is a group of its own, which was
        measured to be faster than an all-to-all or a gather, and sends only what is needed.

        Args:
            routes: (source, target) of each message, the same on every member.
            tensors: the tensors that this member sends, by their index in the routes.
            shapes: the static shapes of those that it receives, by their index in the routes.
            dtype: of all of them: a float of at least 16 bits but bfloat16, int32, int64 or bool.

        Returns:
            The tensors that this member receives, by index; and the operations that send. Make
            something that is computed in any case depend on these.
        """
        received: dict[int, tf.Tensor] = {}
        sent: list[tf.Operation] = []
        for index, (source, target) in enumerate(routes):
            common = self._pair(source, target, dtype)
            if source == self.index:
                operation = tf.raw_ops.CollectiveBcastSendV2(input=tensors[index], **common)
                sent.append(operation.op if hasattr(operation, "op") else operation)
            elif target == self.index:
                received[index] = tf.raw_ops.CollectiveBcastRecvV2(
                    T=dtype, shape=shapes[index], **common
                )
        return received, sent

    def sum_all(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-reduce (sum) many tensors of static shapes, with few operations.

        Many bytes go in buckets, the last tensors first. A backward pass begins with the gradients
        of the last variables, so they are under way while it computes the others.
        """
        sums, _ = self.sum_and_gather(tensors, ())
        return sums

    def sum_and_gather(
        self, summands: Sequence[tf.Tensor], blocks: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """All-reduce (sum) some tensors as `sum_all` does, and all-gather others.

        All have static shapes. Where they have few bytes, one operation takes all of them.

        Returns:
            The sums, and a stack [members, …] of each block in the group's order.
        """
        if self.size == 1:
            return list(summands), [block[tf.newaxis] for block in blocks]
        is_gathered = self._is_gathered([*summands, *blocks])
        if blocks and not is_gathered:
            return self.sum_all(summands), self._gather_blocks(blocks)
        groups = _by_type(summands)
        if not is_gathered:
            groups = [bucket for group in groups[::-1] for bucket in _buckets(summands, group)]
        packs = [_pack([summands[index] for index in chosen]) for chosen in groups]
        timer = self.timer if self._program is Program.TRAIN else None
        if timer is not None:
            timer.start(packs)
        stacks: list[tf.Tensor] = []
        if is_gathered:
            stacks = self._gather_bits([*packs, *blocks])
            # All members add in the order of their positions, so they get the same numbers.
            totals = [tf.add_n(tf.unstack(stack)) for stack in stacks[: len(packs)]]
        else:
            totals = [self.sum(pack) for pack in packs]
        if timer is not None:
            timer.stop(totals)
        sums = list(summands)
        for total, chosen in zip(totals, groups, strict=True):
            sizes = [summands[index].shape.num_elements() for index in chosen]
            for index, part in zip(chosen, tf.split(total, sizes), strict=True):
                sums[index] = tf.reshape(part, summands[index].shape)
        return sums, stacks[len(packs) :]

    def count_summed_bytes(self, count: int) -> float:
        """Bytes that a member receives where tensors of so many bytes are summed."""
        if self._hint is Hint.RING and count * self.size <= GATHERED_BYTES:
            return self.count_gathered_bytes(count)
        return 2 * count * (self.size - 1) / self.size

    def count_gathered_bytes(self, count: int) -> float:
        """Bytes that a member receives where each brings so many."""
        return count * (self.size - 1)

    def reduce_scatter_all(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Reduce-scatter (sum) many tensors [members, n]; this member gets its row of each sum.

        TensorFlow has a reduce-scatter for NCCL only. An all-to-all sends as many bytes.
        """
        results: list[tf.Tensor] = list(tensors)
        for chosen in _by_type(tensors):
            packed = tf.concat([tensors[index] for index in chosen], 1)
            row = tf.reduce_sum(self.all_to_all(packed), 0)
            sizes = [tensors[index].shape[1] for index in chosen]
            for index, part in zip(chosen, tf.split(row, sizes), strict=True):
                results[index] = part
        return results

    def gather_all(self, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gather many tensors [n], with one operation for each type: [members, n]."""
        results: list[tf.Tensor] = list(rows)
        for chosen in _by_type(rows):
            gathered = self.gather(tf.concat([rows[index] for index in chosen], 0))
            sizes = [rows[index].shape[0] for index in chosen]
            for index, part in zip(chosen, tf.split(gathered, sizes, 1), strict=True):
                results[index] = part
        return results

    def _is_gathered(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Whether one gather and local sums add tensors up faster than rings of sums."""
        fits = sum(map(_count_bytes, tensors)) * self.size <= GATHERED_BYTES
        return self._hint is Hint.RING and fits and all(map(_has_words, tensors))

    def _gather_blocks(self, blocks: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gather tensors of different types."""
        if self._hint is Hint.RING and all(map(_has_words, blocks)):
            return self._gather_bits(blocks)
        return [self.gather(block) for block in blocks]

    def _gather_bits(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """All-gather tensors of different types by one gather of their bits.

        It sends a message where a ring of sums sends two, and takes all types at once.
        """
        if not tensors:
            return []
        vectors = [_words(tensor) for tensor in tensors]
        rows = self.gather(tf.concat(vectors, 0))
        columns = tf.split(rows, [vector.shape[0] for vector in vectors], axis=1)
        return [_unpack(bits, tensor) for bits, tensor in zip(columns, tensors, strict=True)]

    def _pair(self, source: int, other: int, dtype: tf.DType) -> dict[str, object]:
        """The arguments of an operation of two members; every member counts a position for it."""
        arguments = self._arguments(dtype)
        # Only operations of a whole group are kept in order, and NCCL needs that.
        del arguments["ordering_token"]
        if self._hint is Hint.NCCL:
            arguments["communication_hint"] = Hint.AUTO
        key = shape.pair_key(self._key, self.size, source, other)
        return arguments | {"group_size": tf.constant(2), "group_key": tf.constant(key)}

    def _arguments(
        self, dtype: tf.DType, variant: tf.Tensor | int = 0, variants: int = 1
    ) -> dict[str, object]:
        """The arguments that all operations share.

        An operation whose shapes vary takes `variants` positions and runs at one of them.
        """
        position = self._position
        self._position += variants
        return {
            "group_size": tf.constant(self.size, tf.int32),
            "group_key": tf.constant(self._key, tf.int32),
            "instance_key": tf.constant(self._program << POSITION_BITS | position) + variant,
            "ordering_token": [self._token.handle],
            "communication_hint": self._hint_for(dtype),
        }

    def _hint_for(self, dtype: tf.DType) -> Hint:
        is_other = self._hint is Hint.NCCL and dtype not in _NCCL_TYPES
        return Hint.AUTO if is_other else self._hint


def _has_words(tensor: tf.Tensor) -> bool:
    """Whether `_words` takes a tensor of this type."""
    return int(tensor.dtype.size) > 1


def _words(tensor: tf.Tensor) -> tf.Tensor:
    """The bits of a tensor as a vector of words; numbers of two bytes are filled up to a word."""
    flat = tf.reshape(tensor, [-1])
    if tensor.dtype.size < _WORD.size:
        flat = tf.reshape(tf.pad(flat, [[0, flat.shape[0] % 2]]), [-1, 2])
    return tf.reshape(tf.bitcast(flat, _WORD), [-1])


def _unpack(bits: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Undo `_words` for the bits [members, n] of tensors like this one."""
    members, count = bits.shape[0], tensor.shape.num_elements()
    if tensor.dtype.size > _WORD.size:
        bits = tf.reshape(bits, [members, count, tensor.dtype.size // _WORD.size])
    numbers = tf.reshape(tf.bitcast(bits, tensor.dtype), [members, -1])
    return tf.reshape(numbers[:, :count], [members, *tensor.shape])


def _by_type(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """The positions of tensors of one type each, in the order of the types' names."""
    return [
        [index for index, tensor in enumerate(tensors) if tensor.dtype.name == kind]
        for kind in sorted({tensor.dtype.name for tensor in tensors})
    ]


def _buckets(tensors: Sequence[tf.Tensor], chosen: Sequence[int]) -> list[list[int]]:
    """Divide positions of tensors into buckets, from the last tensor to the first."""
    buckets: list[list[int]] = [[]]
    filled = 0
    for index in reversed(chosen):
        size = _count_bytes(tensors[index])
        if buckets[-1] and filled + size > BUCKET_BYTES:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


def _count_bytes(tensor: tf.Tensor) -> int:
    count: int = tensor.shape.num_elements() * tensor.dtype.size
    return count


def _pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The elements of tensors of one type in a row."""
    vectors = [tf.reshape(tensor, [-1]) for tensor in tensors]
    return vectors[0] if len(vectors) == 1 else tf.concat(vectors, 0)


def _build_token(device: str, hint: Hint) -> Any:
    """Return the ordering token of a group; a GPU that uses NCCL has one for all groups."""
    if hint is Hint.NCCL and device in _orders:
        return _orders[device]
    with tf.device(device):
        token = tf.Variable(0.0, trainable=False, name="ordering_token")
    if hint is Hint.NCCL:
        _orders[device] = token
    return token


def _power_of_two(count: tf.Tensor) -> tf.Tensor:
    """The smallest p with 2**p >= count, as a scalar int32; 0 for nothing."""
    powers = tf.bitwise.left_shift(
        tf.ones((_MAX_POWER,), tf.int64), tf.range(_MAX_POWER, dtype=tf.int64)
    )
    return tf.reduce_sum(tf.cast(powers < count, tf.int32))
