"""Puts the lists of the ranks of this process into one traced function.

Each rank does its list in order, which `fences` keeps. What they leave to messages between
processes relaxes the order of lists that come to their end, so these do, too.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.engine import exchange, stage_worker
from tfparallel_trainer.engines.split.pipeline import cutting, partition, programs, schedule

Total = collections.abc.Callable[[programs.Rendezvous, Sequence[int]], None]
"""Makes a sum, given the ranks of this process that take part."""


def emit(
    partition: partition.Partition,
    lists: Mapping[int, Sequence[programs.Step]],
    workers: Mapping[int, stage_worker.StageWorker],
    between: exchange.Exchange,
    total: Total | None = None,
) -> None:
    """Let the ranks of this process do their lists.

    Args:
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
    waiting: Mapping[int, collections.deque[programs.Step]],
    workers: Mapping[int, stage_worker.StageWorker],
    messages: "_Messages",
    total: Total | None,
) -> int:
    """Do what a rank can do now; gives how many steps."""
    done = 0
    steps = waiting[rank]
    while steps:
        step = steps[0]
        participants = [rank]
        if isinstance(step, programs.Rendezvous):
            participants = [participant for participant in step.ranks if participant in workers]
            if any(not waiting[one] or waiting[one][0] != step for one in participants):
                break
        for participant in participants:
            waiting[participant].popleft()
        done += 1
        match step:
            case schedule.Action() as action:
                workers[rank].work(action)
            case programs.Rendezvous(ranks=(source, target), tag=programs.Parcel() as parcel):
                messages.pass_on(source, target, parcel)
            case programs.Rendezvous() if total is not None:
                for participant in participants:
                    workers[participant].settle()
                total(step, participants)
    return done


class _Messages:
    """Passes tensors from one rank to another."""

    def __init__(
        self,
        partition: partition.Partition,
        workers: Mapping[int, stage_worker.StageWorker],
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
