"""One order for the lists of a process's ranks, and the part of it that repeats. Pure.

Between its first and its last microbatches, a pipeline does the same for each microbatch. A step's
graph has that part once, in a loop.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence

from tfparallel_trainer.engines.split.pipeline import programs, schedule

_FEWEST_REPEATS = 5
"""A loop of fewer repeats saves less of a step's start than its own operations cost."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a list, and the ranks of this process that take part in it."""

    step: programs.Step
    ranks: tuple[int, ...]

    @property
    def microbatch(self) -> int:
        """The number of its microbatch; 0 for a sum."""
        match self.step:
            case schedule.Action(_, microbatch):
                return microbatch
            case programs.Collective(_, programs.Message(microbatch=microbatch)):
                return microbatch
        return 0

    @property
    def kind(self) -> Hashable:
        """Equal for operations that differ in their microbatch only; None for a sum."""
        match self.step:
            case schedule.Action(work):
                return self.ranks, work
            case programs.Collective(ranks, programs.Message(work, tensor)):
                return ranks, work, tensor
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive operations."""

    operations: tuple[Operation, ...]
    """Those of the first repeat."""
    repeats: int = 1
    """Each repeat is for the microbatches that follow those of the repeat before."""


def interleave(lists: Mapping[int, Sequence[programs.Step]]) -> list[Operation]:
    """Merge the lists of a process's ranks into one sequence that keeps the order of each.

    Lists that wait for each other in a circle are a ValueError.
    """
    pending = {rank: collections.deque(steps) for rank, steps in lists.items()}
    operations: list[Operation] = []
    while any(pending.values()):
        # No rank runs ahead of others, so that all of them repeat the same together.
        busy: set[int] = set()
        for rank, steps in pending.items():
            ranks = _participants(rank, pending) if steps else ()
            if not busy.intersection(ranks):
                operations += [Operation(steps[0], ranks)] if ranks else []
                busy.update(ranks)
                for participant in ranks:
                    pending[participant].popleft()
        if not busy:
            stuck = "; ".join(
                f"rank {rank}: {steps[0]}" for rank, steps in pending.items() if steps
            )
            raise ValueError(f"the lists of the ranks cannot be done ({stuck})")
    return operations


def find_loops(
    operations: Sequence[Operation], sizes: Mapping[int, Sequence[Hashable]]
) -> list[Stretch]:
    """Divide operations into stretches, of which some repeat.

    Before a stretch that repeats, its operations have been done once, for the microbatches before.
    In a repeat, each kind of operation of its ranks occurs once. So ranks have as many tensors in
    memory after it as before it.

    Args:
        operations: of `interleave`.
        sizes: what must be equal of the microbatches of a loop, by rank and microbatch.
    """
    search = _RepeatSearch(operations, sizes)
    stretches: list[Stretch] = []
    once: list[Operation] = []
    position = 0
    while position < len(operations):
        period = search.find_period(position)
        repeats = search.count_repeats(position, period) if period else 1
        if repeats < _FEWEST_REPEATS:
            once.append(operations[position])
            position += 1
            continue
        first, second = position + period, position + 2 * period
        stretches.append(Stretch((*once, *operations[position:first])))
        stretches.append(Stretch(tuple(operations[first:second]), repeats - 1))
        once = []
        position += repeats * period
    return [*stretches, Stretch(tuple(once))]


def _participants(
    rank: int, pending: Mapping[int, collections.deque[programs.Step]]
) -> tuple[int, ...]:
    """The ranks of this process that do a rank's next operation; none if one is not ready."""
    step = pending[rank][0]
    if isinstance(step, schedule.Action):
        return (rank,)
    ranks = tuple(rank for rank in step.ranks if rank in pending)
    is_ready = all(pending[rank] and pending[rank][0] == step for rank in ranks)
    return ranks if is_ready else ()


class _RepeatSearch:
    """Finds repeats among operations."""

    def __init__(
        self, operations: Sequence[Operation], sizes: Mapping[int, Sequence[Hashable]]
    ) -> None:
        self._operations = operations
        self._sizes = sizes
        self._kinds = [operation.kind for operation in operations]
        self._kinds_of_rank: dict[int, set[Hashable]] = collections.defaultdict(set)
        for operation, kind in zip(operations, self._kinds, strict=True):
            for rank in operation.ranks if kind else ():
                self._kinds_of_rank[rank].add(kind)

    def find_period(self, position: int) -> int:
        """How many operations may repeat from a position; 0 if they lack one of their ranks'."""
        kind = self._kinds[position]
        end = next(self._positions(kind, position + 1), position) if kind else position
        operations, kinds = self._operations[position:end], self._kinds[position:end]
        ranks = {rank for operation in operations for rank in operation.ranks}
        needed = {kind for rank in ranks for kind in self._kinds_of_rank[rank]}
        if set(kinds) != needed or len(kinds) != len(needed):
            return 0
        sizes = {
            (rank, self._size(rank, operation))
            for operation in operations
            for rank in operation.ranks
        }
        return len(kinds) if len(sizes) == len(ranks) else 0

    def count_repeats(self, position: int, period: int) -> int:
        """How often the operations from a position occur, one repeat after the other."""
        end = position + period
        while end < len(self._operations) and self._follows(end, end - period):
            end += 1
        return (end - position) // period

    def _follows(self, position: int, before: int) -> bool:
        """Whether an operation is that of a position before, for the next microbatch."""
        operation, earlier = self._operations[position], self._operations[before]
        return (
            self._kinds[position] == self._kinds[before]
            and operation.microbatch == earlier.microbatch + 1
            and all(
                self._size(rank, operation) == self._size(rank, earlier) for rank in operation.ranks
            )
        )

    def _positions(self, kind: Hashable, start: int) -> Iterator[int]:
        return (index for index in range(start, len(self._kinds)) if self._kinds[index] == kind)

    def _size(self, rank: int, operation: Operation) -> Hashable:
        return self._sizes[rank][operation.microbatch]
