"""Where the time of a job went, in words. Pure."""

from tfparallel_operator.api import names
from tfparallel_operator.core.status import goodput
from tfparallel_trainer.contract import progress


def describe(measured: goodput.Goodput) -> str:
    """Return the share of training, and the time of each activity, longest first."""
    longest = sorted(measured.seconds.items(), key=lambda item: -item[1])
    parts = (f"{kind} {progress.format_duration(seconds)}" for kind, seconds in longest if seconds)
    return f"{measured.share:.0%}: {', '.join(parts)}"


def find_longest_badput(measured: goodput.Goodput) -> names.Activity | None:
    """Return the activity that took longest, apart from training; None: the job only trained."""
    badput = [kind for kind in measured.seconds if kind is not names.Activity.TRAINING]
    longest = max(badput, key=lambda kind: measured.seconds[kind])
    return longest if measured.seconds[longest] else None
