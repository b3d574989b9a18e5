"""How far callbacks reach: what they are given as the model, and who hears what they decide."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tfparallel_trainer.keras_fit import decisions
from tfparallel_trainer.objective import averages, replica, state


class Reach(Protocol):
    """Between all processes of a run; each makes the same calls in the same order."""

    @property
    def leads(self) -> bool:
        """Whether callbacks run in this process."""

    @property
    def model(self) -> Any:
        """The Keras model that has `stop_training` and the history."""

    def shown_to(self, callback: Any) -> Any:
        """What a callback is given as the model."""

    def after(self, call: Callable[[], bytes]) -> bytes:
        """Let the leading process make a call; all get what it gives and what it changes."""

    def finish(self, *, trained: bool) -> None:
        """Let the weights be what Keras' fit leaves.

        Args:
            trained: whether an epoch has ended.
        """


class Whole:
    """Over replicas that each have the whole model."""

    def __init__(self, replicas: Sequence[replica.Replica]) -> None:
        """Args:
        replicas: those of this process.
        """
        self._replicas = replicas
        self._decisions = decisions.Decisions(replicas)
        self._statistics = state.Statistics(replicas)

    @property
    def leads(self) -> bool:
        """Whether this process has the first replica."""
        return self._decisions.leads

    @property
    def model(self) -> Any:
        """That of the first replica of this process."""
        return self._replicas[0].model

    def shown_to(self, callback: Any) -> Any:
        """The model itself."""
        return self.model

    def after(self, call: Callable[[], bytes]) -> bytes:
        """Variables that the call changes are changed on all replicas."""
        return self._decisions.after(call)

    def finish(self, *, trained: bool) -> None:
        """Let the first replica's statistics, and averages of the weights, be everyone's."""
        self._statistics.share()
        if trained:
            for replica in self._replicas:
                averages.adopt(replica.model)
