"""The processes that save and restore checkpoints together."""

import dataclasses
from collections.abc import Callable, Sequence

from tfparallel_trainer.comms import agreement, tasks
from tfparallel_trainer.runtime.lifecycle import stall


def _alone(number: int) -> Sequence[int]:
    return [number]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """This process among those that hold the variables; absent arguments: it holds all."""

    me: int = 0
    """Number of this process; the chief is 0."""
    names: tuple[str, ...] = ("chief-0",)
    gather: Callable[[int], Sequence[int]] = _alone
    """Gives the numbers (63 bits) that all processes give, in their order; all call it alike."""

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
        """Whether this process removes and names checkpoints."""
        return self.me == 0

    def failed(self, well: bool) -> str | None:
        """Tell which process, if any, says that something did not go well; all get the same."""
        for name, answer in zip(self.names, self.gather(int(well)), strict=True):
            if not answer:
                return name
        return None


def of(cluster: tasks.Cluster, device: str, watch: stall.Watch) -> Peers:
    """The processes of a cluster that has started; they talk through a device of this one."""
    if cluster.alone:
        return Peers()
    numbers = agreement.Numbers(cluster, device)

    def gather(number: int) -> Sequence[int]:
        with watch.waiting():
            return numbers(number)

    return Peers(
        me=cluster.me,
        names=tuple(task.name for task in cluster.tasks),
        gather=gather,
    )
