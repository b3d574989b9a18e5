"""The trainer's exit codes: a documented contract with the operator.

The numbers lie in the range of BSD's sysexits.h, away from those that shells and signals use.
"""

import enum
from typing import Self


class Exit(enum.IntEnum):
    """Why a trainer process ended."""

    retryable: bool
    """Whether the same command may succeed when it is simply run again."""
    meaning: str
    """One sentence for a person who sees the code in a status or a log."""

    def __new__(cls, code: int, meaning: str = "", retryable: bool = False) -> Self:
        """Let the code alone be the value."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.retryable = retryable
        member.meaning = meaning
        return member

    DONE = 0, "training finished"
    USER_ERROR = 65, "the user's module, model or data raised an error"
    NON_FINITE = 66, "the loss, a gradient or a weight became NaN or infinite"
    VERIFICATION_FAILED = 67, "a step differs from the same step of one process (trainer.verify)"
    """The log names what differs; the same job would differ again."""
    INTERNAL_ERROR = 70, "the trainer itself failed; the log has the traceback"
    """In a way that it does not know: a bug to report."""
    DEVICE_FAILED = 71, "a device, or what joins devices, failed", True
    """Another try may do, or another node."""
    STORAGE_FAILED = 73, "data could not be read, or a checkpoint or the results not written", True
    """For now; the last good checkpoint is whole."""
    START_TIMEOUT = 74, "a peer did not start in time", True
    PEER_LOST = 75, "a peer was lost", True
    """It died or froze: the survivors end at once and are ready to be run again."""
    PREEMPTED = 76, "asked to end, after saving a checkpoint where one is configured", True
    OUT_OF_MEMORY = 77, "out of memory", True
    BAD_CONFIGURATION = 78, "the configuration cannot work as given"
    """The job file, the environment or the strategy."""
    STALLED = 79, "a step, or what comes before or after the steps, did not end in time", True


TENSORFLOW_RESTART = 42
"""TensorFlow's PreemptionCheckpointHandler exits with it after saving a checkpoint."""

ASKED_TO_END = (TENSORFLOW_RESTART, Exit.PREEMPTED)
"""Codes of a process that has ended because somebody asked it to."""

_SIGNALS = range(1, 65)
"""Numbers of Linux' signals."""


def describe(code: int) -> str:
    """Say what an exit code means under this contract, or under the shell's for the others."""
    try:
        return Exit(code).meaning
    except ValueError:
        pass
    if code == TENSORFLOW_RESTART:
        return "TensorFlow asks to be started again, after saving a checkpoint"
    if code - 128 in _SIGNALS:
        return f"ended by signal {code - 128}"
    return "the command failed"
