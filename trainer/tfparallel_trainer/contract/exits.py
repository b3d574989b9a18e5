"""The trainer's exit codes: a documented contract with the operator.

The numbers lie in the range of BSD's sysexits.h, away from those that shells and signals use.
"""

import enum


class Exit(enum.IntEnum):
    """Why a trainer process ended."""

    DONE = 0
    USER_ERROR = 65
    """The user's module, model or data raised: running it again would fail again."""
    NON_FINITE = 66
    """The loss, a gradient or a weight became NaN or infinite; the log names a checkpoint."""
    INTERNAL_ERROR = 70
    """The trainer itself failed in a way that it does not know: a bug to report."""
    DEVICE_FAILED = 71
    """A device, its libraries or what joins devices failed: another try may do, or another node."""
    STORAGE_FAILED = 73
    """Data could not be read for now, or a checkpoint or the results could not be written; the last
    good checkpoint is whole."""
    START_TIMEOUT = 74
    """A peer did not answer within the start timeout; the log names it."""
    PEER_LOST = 75
    """A peer died or froze: the survivors end at once and are ready to be run again."""
    PREEMPTED = 76
    """Asked to end (SIGTERM): a checkpoint was saved where one is configured."""
    OUT_OF_MEMORY = 77
    """A device or the process had no memory left."""
    BAD_CONFIGURATION = 78
    """The job file, the environment or the strategy cannot work as given."""
    STALLED = 79
    """A step, or what comes before or after the steps, did not end within its limit."""

    @property
    def retryable(self) -> bool:
        """Whether the same command may succeed when it is simply run again."""
        return self in _RETRYABLE

    @property
    def meaning(self) -> str:
        """One sentence for a person who sees the code in a status or a log."""
        return _MEANINGS[self]


_RETRYABLE = frozenset(
    {
        Exit.DEVICE_FAILED,
        Exit.STORAGE_FAILED,
        Exit.START_TIMEOUT,
        Exit.PEER_LOST,
        Exit.PREEMPTED,
        Exit.OUT_OF_MEMORY,
        Exit.STALLED,
    }
)

_MEANINGS = {
    Exit.DONE: "training finished",
    Exit.USER_ERROR: "the user's module, model or data raised an error",
    Exit.NON_FINITE: "the loss, a gradient or a weight became NaN or infinite",
    Exit.INTERNAL_ERROR: "the trainer itself failed; the log has the traceback",
    Exit.DEVICE_FAILED: "a device, or what joins devices, failed",
    Exit.STORAGE_FAILED: "data could not be read, or a checkpoint or the results not written",
    Exit.START_TIMEOUT: "a peer did not start in time",
    Exit.PEER_LOST: "a peer was lost",
    Exit.PREEMPTED: "asked to end, after saving a checkpoint where one is configured",
    Exit.OUT_OF_MEMORY: "out of memory",
    Exit.BAD_CONFIGURATION: "the configuration cannot work as given",
    Exit.STALLED: "a step, or what comes before or after the steps, did not end in time",
}


def describe(code: int) -> str:
    """Say what an exit code means under this contract, or under the shell's for the others."""
    try:
        return Exit(code).meaning
    except ValueError:
        pass
    if code > 128:
        return f"ended by signal {code - 128}"
    return "the command failed"
