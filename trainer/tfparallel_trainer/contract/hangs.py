"""Where a hung process stood: a clause of its last message, which the operator reads."""

import dataclasses
import re

_PATTERN = re.compile(
    r"has ended for [0-9]{1,9} s \([^)]{1,100}\) since (?P<after>.{1,400}?):"
    r" the main thread is in (?P<stack>.{1,900}?\))\. "
)


@dataclasses.dataclass(frozen=True, slots=True)
class Hang:
    """Where a process hung."""

    after: str
    """Its last sign of life, such as "step 7"."""
    stack: str
    """The calls of its main thread, the innermost first."""


def describe(hang: Hang, seconds: float, field: str) -> str:
    """Return the sentence about a hang that exceeded the limit of a field."""
    return (
        f"Nothing has ended for {seconds:.0f} s ({field}) since {hang.after}: the main thread is in"
        f" {hang.stack}. "
    )


def find(message: str) -> Hang | None:
    """Return the hang that a message describes; None: it describes none."""
    match = _PATTERN.search(message)
    return None if match is None else Hang(**match.groupdict())
