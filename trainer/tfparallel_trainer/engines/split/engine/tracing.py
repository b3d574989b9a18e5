"""Puts the lists of the ranks of this process into one traced function.

Each rank does its list in order, which `stage_worker.Fences` keeps. What they leave to messages
between processes relaxes the order of lists that come to their end, so these do, too.
"""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.engine import exchange, stage_worker
from tfparallel_trainer.engines.split.pipeline import cutting, partition, programs, schedule

Total = Callable[[programs.Rendezvous, Sequence[int]], None]
"""Makes a sum, given the ranks of this process that take part."""


def emit(
    partition: partition.Partition,
    lists: Mapping[int, Sequence[programs.Step]],
    workers: Mapping[int, stage_worker.StageWorker],
    between: exchange.Exchange,
    total: Total | None = None,
) -> None:
    """Let the ranks of this process do their lists.

    Raises:
        ValueError: the lists cannot be done.
    """
    waiting = {rank: collections.deque(lists[rank]) for rank in workers}
    tracer = _Tracer(partition, workers, between, total, waiting)
    while any(waiting.values()):
        if not sum([tracer.advance(rank) for rank in workers]):
            stuck = "; ".join(
                f"rank {rank}: {steps[0]}" for rank, steps in waiting.items() if steps
            )
            raise ValueError(f"the lists of the ranks cannot be done ({stuck})")
    for worker in workers.values():
        worker.settle()


@dataclasses.dataclass(frozen=True, slots=True)
class _Tracer:
    partition: partition.Partition
    workers: Mapping[int, stage_worker.StageWorker]
    between: exchange.Exchange
    total: Total | None
    waiting: Mapping[int, collections.deque[programs.Step]]
    """What each rank has still to do."""

    def advance(self, rank: int) -> int:
        """Do what a rank can do now; gives how many steps."""
        done = 0
        steps = self.waiting[rank]
        while steps:
            step = steps[0]
            participants = [rank]
            if isinstance(step, programs.Rendezvous):
                participants = [one for one in step.ranks if one in self.workers]
                heads = [next(iter(self.waiting[one]), None) for one in participants]
                if any(head != step for head in heads):
                    break
            for participant in participants:
                self.waiting[participant].popleft()
            done += 1
            match step:
                case schedule.Action():
                    self.workers[rank].work(step)
                case programs.Rendezvous(ranks=(source, target), tag=programs.Parcel() as parcel):
                    self._pass_on(source, target, parcel)
                case programs.Rendezvous() if self.total is not None:
                    for participant in participants:
                        self.workers[participant].settle()
                    self.total(step, participants)
        return done

    def _pass_on(self, source: int, target: int, parcel: programs.Parcel) -> None:
        """Do this process's part of a message."""
        begin, end = self.partition.stage_of(source), self.partition.stage_of(target)
        if parcel.work is schedule.Work.BACKWARD:  # a gradient goes against the transfer
            begin, end = end, begin
        address = (cutting.Transfer(begin, end, parcel.tensor), parcel)
        number = self.partition.number(parcel, address[0])
        giver, taker = self.workers.get(source), self.workers.get(target)
        tensor: Any = None
        if giver is not None:
            tensor = giver.give(address)
            if taker is None:
                with giver.giving():
                    giver.gave(self.between.send(source, target, number, tensor))
        if taker is not None:
            with taker.taking():
                if giver is None:
                    shape, kind = taker.shape_of(address)
                    tensor = self.between.receive(source, target, number, shape, kind)
                taken = tf.identity(tensor)
                taker.took(taken)
            taker.take(address, taken)
