"""What is measured, and how the page shows it."""

import dataclasses
import enum
import statistics
from collections.abc import Sequence


class Bound(enum.StrEnum):
    """On which side of the target a value is good."""

    AT_MOST = "≤"
    AT_LEAST = "≥"


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How much is run."""

    examples: int
    batch: int
    epochs: int
    repeats: int
    """How often each side is run, in turns."""
    width: int
    """Of the layers of models that are split."""
    megabytes: int
    """Of weights of the model that is too large for a process."""
    cases: int
    """Models, and meshes of each, at most, whose steps are predicted."""
    jobs: int
    """Jobs that are applied at once to an operator."""
    replicas: int
    """Pods of each of them."""
    large: int
    """Pods of a job that is applied alone."""
    split: int
    """Replicas of a job whose model is split, a multiple of four."""
    huge: int
    """Replicas of the largest job."""
    many: int
    """Jobs of as many pods that an operator watches over at the same time."""
    seconds: int
    """For how long it is measured while some of them end and others begin."""

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-self.examples // self.batch)


FULL = Size(
    examples=4992,
    batch=128,
    epochs=6,
    repeats=5,
    width=1024,
    megabytes=1536,
    cases=4,
    jobs=100,
    replicas=10,
    large=200,
    split=1000,
    huge=5000,
    many=1000,
    seconds=60,
)
SMALL = Size(
    examples=64,
    batch=16,
    epochs=2,
    repeats=1,
    width=32,
    megabytes=1024,  # less would not exceed what a process may hold besides
    cases=1,
    jobs=3,
    replicas=2,
    large=5,
    split=8,
    huge=208,
    many=3,
    seconds=2,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A value that has a target."""

    what: str
    target: float
    bound: Bound
    value: float
    unit: str
    """What stands behind the numbers, such as % or x."""
    detail: str
    """The values that it was made of."""

    @property
    def met(self) -> bool:
        """Whether the value is on the good side."""
        if self.bound is Bound.AT_MOST:
            return self.value <= self.target
        return self.value >= self.target

    def row(self) -> str:
        """A row of the page's table."""
        return (
            f"| {self.what} | {self.bound} {self.target:g}{self.unit} | "
            f"{self.value:.3g}{self.unit} | {'yes' if self.met else 'no'} | {self.detail} |"
        )


def middle(values: Sequence[float]) -> str:
    """A median in milliseconds with the smallest and the largest value."""
    mid = statistics.median(values)
    return f"{1000 * mid:.1f} ms ({1000 * min(values):.1f}…{1000 * max(values):.1f})"


def ratio(
    what: str, target: float, ours: Sequence[float], theirs: Sequence[float], other: str
) -> Result:
    """Compare the trainer's seconds with another's by their medians."""
    value = statistics.median(ours) / statistics.median(theirs)
    detail = f"{middle(ours)} against {middle(theirs)} of {other}"
    return Result(what, target, Bound.AT_MOST, value, " x", detail)
