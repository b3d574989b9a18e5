"""Errors of the command and of the client, with messages for people."""

from tfparallel_operator.api import load


class Failure(Exception):  # noqa: N818 (an outcome, not a bug)
    """The request failed. The message is a sentence with a remedy."""


class Stopped(Exception):  # noqa: N818
    """A signal ended the command."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number


class JobNotFound(load.SpecError):
    """No job has the name."""


class MisfitWarning(UserWarning):
    """A model does not fit its GPUs, by the planner's estimate."""
