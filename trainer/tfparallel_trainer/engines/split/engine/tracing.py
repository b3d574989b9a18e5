"""Puts the lists of the ranks of this process into one traced function.

Each rank does its list in order: what it does waits for all that it did before. Otherwise
`tf.function` runs whatever is ready, and neither order nor memory would be the schedule's.
Only a message between processes may be on its way meanwhile: it leaves while its giver works on,
and arrives while its taker still does the work before. That relaxes the order of lists that come
to their end, so these do, too. It is one message for each rank, so memory stays bounded.
"""

import abc
import collections
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.engine import exchange
from tfparallel_trainer.engines.split.pipeline import (
    communication,
    cutting,
    partition,
    programs,
    schedule,
)

Address = tuple[cutting.Transfer, programs.Parcel]
"""What tells a message of a rank apart from all its others."""


class Worker(abc.ABC):
    """What one rank does in a program, in order: each operation waits for earlier ones."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._last: list[Any] = []
        self._before: list[Any] = []
        """What the latest work waited for."""
        self._arrived: list[Any] = []
        self._gone: list[Any] = []
        # NCCL wants messages in one order at both ends, which only strict order grants.
        self._overlaps = ":GPU:" not in device

    @contextlib.contextmanager
    def fence(self) -> Iterator[None]:
        """A context in which operations wait for all that this rank did before."""
        with tf.device(self._device), tf.control_dependencies(self._last):
            yield

    def did(self, tensors: Sequence[Any]) -> None:
        """What the rank does next waits for these, which were made behind its fence."""
        done = [one for one in tensors if one is not None]
        if done:
            self._last = [*done, *self._arrived]
            self._arrived = []

    def begin(self) -> None:
        """The rank's next work begins, for which it waits for what is to arrive."""
        self._last = self._before = [*self._last, *self._arrived]
        self._arrived = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """A context for a message that may arrive while the rank does its latest work."""
        before = self._before if self._overlaps else self._last
        with tf.device(self._device), tf.control_dependencies(before):
            yield

    def took(self, tensor: Any) -> None:
        """The rank's next work has use for this, which was made in the context `taking`."""
        self._arrived.append(tensor)
        if not self._overlaps:
            self.settle()

    @contextlib.contextmanager
    def giving(self) -> Iterator[None]:
        """A context for a message that may leave while the rank goes on, one after the other."""
        before = self._gone if self._overlaps else self._last
        with tf.device(self._device), tf.control_dependencies(before):
            yield

    def gave(self, tensor: Any) -> None:
        """The rank's next message waits for this, which was made in the context `giving`."""
        self._gone = [tensor]
        if not self._overlaps:
            self.settle()

    def settle(self) -> None:
        """What the rank does next waits for all messages, too."""
        self._last = [*self._last, *self._arrived, *self._gone]
        self._arrived, self._gone = [], []

    @abc.abstractmethod
    def work(self, action: schedule.Action) -> None:
        """Do the work of a turn."""

    @abc.abstractmethod
    def give(self, address: Address) -> tf.Tensor:
        """Give what a message carries."""

    @abc.abstractmethod
    def take(self, address: Address, tensor: tf.Tensor) -> None:
        """Take what a message carries."""

    @abc.abstractmethod
    def shape_of(self, address: Address) -> tuple[Sequence[int], str]:
        """Shape and type of what a message brings."""


Total = collections.abc.Callable[[communication.Rendezvous, Sequence[int]], None]
"""Makes a sum, given the ranks of this process that take part."""


def emit(
    partition: partition.Partition,
    lists: Mapping[int, Sequence[communication.Step]],
    workers: Mapping[int, Worker],
    between: exchange.Exchange,
    total: Total | None = None,
) -> None:
    """Let the ranks of this process do their lists.

    Args:
        partition: the model on the mesh.
        lists: of all ranks.
        workers: those of this process, by rank.
        between: how they meet.
        total: makes sums; absent where the lists have none.

    Raises:
        ValueError: the lists cannot be done.
    """
    waiting = {rank: collections.deque(lists[rank]) for rank in workers}
    messages = _Messages(partition, workers, between)
    while any(waiting.values()):
        done = sum([_advance(rank, waiting, workers, messages, total) for rank in workers])
        if not done:
            stuck = "; ".join(
                f"rank {rank}: {steps[0]}" for rank, steps in waiting.items() if steps
            )
            raise ValueError(f"the lists of the ranks cannot be done ({stuck})")
    for worker in workers.values():
        worker.settle()


def _advance(
    rank: int,
    waiting: Mapping[int, collections.deque[communication.Step]],
    workers: Mapping[int, Worker],
    messages: "_Messages",
    total: Total | None,
) -> int:
    """Do what a rank can do now; gives how many steps."""
    done = 0
    steps = waiting[rank]
    while steps:
        step = steps[0]
        participants = [rank]
        if isinstance(step, communication.Rendezvous):
            participants = [participant for participant in step.ranks if participant in workers]
            if any(not waiting[one] or waiting[one][0] != step for one in participants):
                break
        for participant in participants:
            waiting[participant].popleft()
        done += 1
        match step:
            case communication.Compute(what=schedule.Action() as action):
                workers[rank].work(action)
            case communication.Rendezvous(ranks=(source, target), tag=programs.Parcel() as parcel):
                messages.pass_on(source, target, parcel)
            case communication.Rendezvous() if total is not None:
                for participant in participants:
                    workers[participant].settle()
                total(step, participants)
    return done


class _Messages:
    """Passes tensors from one rank to another."""

    def __init__(
        self,
        partition: partition.Partition,
        workers: Mapping[int, Worker],
        between: exchange.Exchange,
    ) -> None:
        self._partition = partition
        self._workers = workers
        self._between = between

    def pass_on(self, source: int, target: int, parcel: programs.Parcel) -> None:
        """Do this process's part of a message."""
        address = (self._transfer(source, target, parcel), parcel)
        number = self._partition.number(parcel, address[0])
        giver, taker = self._workers.get(source), self._workers.get(target)
        tensor: Any = None
        if giver is not None:
            tensor = giver.give(address)
            if taker is None:
                with giver.giving():
                    giver.gave(self._between.send(source, target, number, tensor))
        if taker is not None:
            with taker.taking():
                if giver is None:
                    shape, kind = taker.shape_of(address)
                    tensor = self._between.receive(source, target, number, shape, kind)
                taken = tf.identity(tensor)
                taker.took(taken)
            taker.take(address, taken)

    def _transfer(self, source: int, target: int, parcel: programs.Parcel) -> cutting.Transfer:
        """Which transfer a message belongs to; a gradient goes against it."""
        begin, end = self._partition.stage_of(source), self._partition.stage_of(target)
        if parcel.work is schedule.Work.BACKWARD:
            begin, end = end, begin
        return cutting.Transfer(begin, end, parcel.tensor)
