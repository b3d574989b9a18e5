"""Observers of training, which may change how it goes on: callbacks, in a word.

The outer loop calls the same moments in the same order in every process. So in any of them an
observer may let processes talk to each other. What it decides must be the same on all.
"""

from typing import Protocol

Logs = dict[str, float]
"""Loss and metrics by name; those of the evaluation begin with val_."""


class Observer(Protocol):
    """Is told of each moment of training; the answers are read right after."""

    @property
    def each_batch(self) -> bool:
        """Whether it is told of each batch, which costs a sum of the metrics for each."""

    @property
    def acts(self) -> bool:
        """Whether it may change weights or optimizer at the end of an epoch."""

    @property
    def stop(self) -> bool:
        """Whether training is to end with this batch or epoch."""

    @property
    def takes_non_finite(self) -> bool:
        """Whether a loss that is not finite is left to it."""

    def evaluates_after(self, epoch: int) -> bool:
        """Whether the end of an epoch (from 0) asks for an evaluation."""

    def training_begins(self) -> None:
        """The model is ready; nothing is trained yet."""

    def epoch_begins(self, epoch: int) -> None:
        """An epoch begins, or goes on after a restart."""

    def batch_begins(self, batch: int) -> None:
        """A batch of the epoch is about to be given; only where `each_batch`."""

    def batch_ends(self, batch: int, logs: Logs) -> None:
        """A batch was given; only where `each_batch`."""

    def reported(self, batch: int, logs: Logs) -> None:
        """Now and then in an epoch: `batch` of its batches are given."""

    def evaluation_begins(self) -> None:
        """The model is about to be evaluated."""

    def evaluation_batch_begins(self, batch: int) -> None:
        """A batch of the evaluation is about to be given."""

    def evaluation_batch_ends(self, batch: int) -> None:
        """A batch of the evaluation was given."""

    def evaluation_ends(self, logs: Logs) -> None:
        """The model was evaluated; the names are without val_."""

    def epoch_ends(self, epoch: int, logs: Logs) -> None:
        """An epoch has ended, after its evaluation."""

    def training_ends(self) -> None:
        """All is trained; the weights may still be changed."""


class NullObserver:
    """Observes without any action."""

    each_batch = False
    acts = False
    stop = False
    takes_non_finite = False

    def evaluates_after(self, epoch: int) -> bool:
        """After each."""
        return True

    def training_begins(self) -> None:
        """Nothing."""

    def epoch_begins(self, epoch: int) -> None:
        """Nothing."""

    def batch_begins(self, batch: int) -> None:
        """Nothing."""

    def batch_ends(self, batch: int, logs: Logs) -> None:
        """Nothing."""

    def reported(self, batch: int, logs: Logs) -> None:
        """Nothing."""

    def evaluation_begins(self) -> None:
        """Nothing."""

    def evaluation_batch_begins(self, batch: int) -> None:
        """Nothing."""

    def evaluation_batch_ends(self, batch: int) -> None:
        """Nothing."""

    def evaluation_ends(self, logs: Logs) -> None:
        """Nothing."""

    def epoch_ends(self, epoch: int, logs: Logs) -> None:
        """Nothing."""

    def training_ends(self) -> None:
        """Nothing."""
