"""Progress lines: on standard error, so that standard output stays the command's answer."""

import sys


class ClusterError(Exception):
    """An error that a person can act on; the message is the whole report."""


def say(text: str) -> None:
    """Print one progress line at once, also when standard error is a pipe."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)
