"""What differs between engines in a run; `runtime.run` has what is the same for all."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import watch
from tfparallel_trainer.contract import progress
from tfparallel_trainer.engines import engine
from tfparallel_trainer.runtime import context, setup


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run trains with."""

    ready: setup.Ready
    engine: engine.Engine
    announce: Callable[[int | None], Iterable[str]]
    """Gives lines for people, from the number of steps where that is known."""
    export: Callable[[files.Position], None] | None = None
    """Leaves the trained model, on all processes; absent: the first replica has all of it."""
    build_reach: Callable[[Sequence[Any]], Any] | None = None
    """Gives how far callbacks reach; absent: over replicas of the whole model."""
    placement: Callable[[], progress.Placement | None] = lambda: None
    steps_by_worker: dict[str, int] | None = None


class Course(abc.ABC):
    """The course of a run with one engine, in the order of its methods."""

    def __init__(self, context: context.RunContext) -> None:
        self.context = context

    @abc.abstractmethod
    def connected(self) -> AbstractContextManager[None]:
        """Reach the other processes, until the body ends."""

    def watched(self) -> AbstractContextManager[None]:
        """End this process when one that it needs is lost, until the body ends."""
        return watch.peers(self.context.settings.cluster, self.context.give_up)

    @abc.abstractmethod
    def prepared(self, leave: Callable[[Callable[[], None]], None]) -> Prepared:
        """Build what is trained, load the data and restore the newest checkpoint.

        Args:
            leave: takes a barrier, as soon as there is one: nobody leaves before all have come
                to it, if all end alike.
        """
