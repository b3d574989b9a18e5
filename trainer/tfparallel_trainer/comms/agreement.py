"""Lets processes compare facts before they train, and exchange numbers."""

import contextlib
import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import channels, collectives, devices
from tfparallel_trainer.lifecycle import stall

_DIGITS = 15
"""Hexadecimal digits of a digest: 60 of the 63 bits that a tensor of int64 carries."""

_channel_numbers = itertools.count()
"""Numbers of channels, which all processes open in one order."""


def check(cluster: tasks.Cluster, device: str, facts: dict[str, int]) -> None:
    """Compare facts (what is compared → its value, 63 bits) of all processes.

    A BadConfigurationError says which process differs from the first one, and in what.
    """
    difference = find_difference(cluster, device, collectives.Program.AGREE, facts)
    if difference is not None:
        raise errors.BadConfigurationError(
            f"{difference}: start all replicas alike, and let what is random in their data "
            "follow from one seed."
        )


def find_difference(
    cluster: tasks.Cluster, device: str, program: collectives.Program, facts: dict[str, int]
) -> str | None:
    """Describe which process differs from the first one, and in which fact; the same everywhere."""
    if cluster.alone:
        return None
    gather, values = Numbers(cluster, device, program, len(facts)), facts.values()
    table = gather(values)
    for task, row in zip(cluster.tasks, table, strict=True):
        for what, here, first in zip(facts, row, table[0], strict=True):
            if here == first:
                continue
            # All processes see the difference. One that exited now could leave another without the
            # table.
            with contextlib.suppress(tf.errors.OpError):
                gather(values)
            return (
                f"{task.name} and {cluster.tasks[0].name} differ in {what} ({_show(here)} and "
                f"{_show(first)})"
            )
    return None


def digest(content: str | bytes) -> int:
    """Digest a content to as many bits as processes compare."""
    data = content.encode() if isinstance(content, str) else content
    return int(hashlib.sha256(data).hexdigest()[:_DIGITS], 16)


def _show(value: int) -> str:
    return str(value) if value < 1 << 20 else f"digest {value:x}"


class Numbers:
    """Exchanges numbers (63 bits) of all processes, any number of times; all call it alike."""

    def __init__(
        self, cluster: tasks.Cluster, device: str, program: collectives.Program, count: int
    ) -> None:
        self._device = device
        self._program = program
        self._everyone = collectives.Communicator(
            collectives.PROCESSES_KEY,
            len(cluster.tasks),
            cluster.me,
            device,
            collectives.choose_hint(device, uses_nccl=False),  # asked at any time, in no order
        )
        numbers = tf.TensorSpec((count,), tf.int64)
        self._traced: Any = tf.function(self._gather, input_signature=[numbers], autograph=False)

    def __call__(self, numbers: Iterable[int]) -> list[list[int]]:
        """Send this process's numbers; returns those of all, in the cluster's order."""
        table: list[list[int]] = self._traced(tf.constant([*numbers], tf.int64)).numpy().tolist()
        return table

    def _gather(self, numbers: tf.Tensor) -> tf.Tensor:
        with tf.device(self._device):
            self._everyone.begin(self._program)
            return self._everyone.gather(numbers)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The processes that hold the variables. Without arguments, this process holds all."""

    me: int = 0
    """Number of this process; the chief is 0."""
    names: tuple[str, ...] = ("chief-0",)
    gather: Callable[[int], Sequence[int]] = lambda number: [number]
    """Sends a number (63 bits), and returns those of all processes in order; all call it alike."""
    open_channel: Callable[[int, int], channels.Channel | None] = lambda *_: None
    """Opens a channel from one process to another, by their numbers; all processes call it alike.
    None: this process is at neither end."""

    @property
    def count(self) -> int:
        """Number of processes."""
        return len(self.names)

    @property
    def alone(self) -> bool:
        """Whether one process holds everything."""
        return self.count == 1

    @property
    def is_chief(self) -> bool:
        """Whether this process publishes and removes checkpoints."""
        return self.me == 0

    def failed(self, well: bool) -> str | None:
        """Return the first process that reports a failure, if any, the same on all."""
        for name, answer in zip(self.names, self.gather(int(well)), strict=True):
            if not answer:
                return name
        return None


def peers(cluster: tasks.Cluster, device: str, watch: stall.Watch) -> Peers:
    """The processes of a running cluster, which communicate through a device of each."""
    if cluster.alone:
        return Peers()
    numbers = Numbers(cluster, device, collectives.Program.DECIDE, 1)

    def open_wait() -> contextlib.AbstractContextManager[object]:
        # Background writes are not a sign of life of the main thread.
        is_watched = threading.current_thread() is threading.main_thread()
        return watch.waiting() if is_watched else contextlib.nullcontext()

    def gather(number: int) -> Sequence[int]:
        with open_wait():
            return [value for (value,) in numbers([number])]

    def open_channel(source: int, target: int) -> channels.Channel | None:
        number = next(_channel_numbers)
        if cluster.me not in (source, target):
            return None
        cpu, is_sender = devices.cpu(cluster), cluster.me == source
        return channels.PairChannel(number, cpu, is_sender=is_sender, open_wait=open_wait)

    names = tuple(task.name for task in cluster.tasks)
    return Peers(me=cluster.me, names=names, gather=gather, open_channel=open_channel)
