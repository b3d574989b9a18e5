"""Observers of training, such as callbacks, which may change its course.

The outer loop calls the same moments in the same order in every process. So in any of them an
observer may let processes talk to each other. What it decides must be the same on all.
"""

Logs = dict[str, float]
"""Loss and metrics by name; those of the evaluation begin with val_."""


class Observer:
    """Hooks for the events of training. All do nothing by default; the loop reads the answers."""

    each_batch = False
    """Whether it is told of each batch, which costs a sum of the metrics for each."""
    acts = False
    """Whether it may change weights or optimizer at the end of an epoch."""
    stop = False
    """Whether training is to end with this batch or epoch."""
    takes_non_finite = False
    """Whether a loss that is not finite is left to it."""

    @property
    def memory(self) -> str:
        """What it needs to go on after a restart; on the chief, for checkpoints."""
        return ""

    @property
    def changes(self) -> int:
        """How often it has changed variables; all processes count alike."""
        return 0

    def evaluates_after(self, epoch: int) -> bool:
        """Whether the end of an epoch (from 0) asks for an evaluation."""
        return True

    def training_begins(self) -> None:
        """The model is ready; nothing is trained yet."""

    def epoch_begins(self, epoch: int) -> None:
        """An epoch begins, or is resumed after a restart."""

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
