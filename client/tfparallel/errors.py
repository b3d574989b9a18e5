"""What ends a command or a call of the client, and what it says."""

from tfparallel_operator.api import load


class Failure(Exception):  # noqa: N818 (an outcome, not a bug)
    """What was asked for did not succeed; the text is a sentence with a remedy."""


class Stopped(Exception):  # noqa: N818
    """A signal ended it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by signal {number}")
        self.number = number


class JobNotFound(load.SpecError):
    """No job has the name."""
