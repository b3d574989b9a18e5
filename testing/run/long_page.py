"""Writes docs/benchmarks/long-tier.md: how the last run of the long tier went."""

import dataclasses
import datetime
import pathlib

from testing import paths

FILE = paths.ROOT / "docs/benchmarks/long-tier.md"


@dataclasses.dataclass(frozen=True)
class Result:
    """One run of the long tier."""

    date: datetime.date
    commit: str
    passed: int
    failed: int
    minutes: float


PAGE = """\
# The long tier

`make test-long` runs all tiers and what continuous integration leaves out:

- repeated meshes and seeds, benchmarks, random examples of Hypothesis
- gangs on the scheduler-plugins' scheduler, queues on Kueue, enforced NetworkPolicies

It prints the branches that ran by package, and writes this page. Run it before a release and when
these parts change.

| date | commit | passed | failed | minutes |
|---|---|---|---|---|
"""


def render(result: Result) -> str:
    """Return the page."""
    row = (result.date, result.commit, result.passed, result.failed, f"{result.minutes:.0f}")
    return f"{PAGE}| {' | '.join(map(str, row))} |\n"


def write(result: Result, file: pathlib.Path = FILE) -> None:
    """Write the page."""
    file.write_text(render(result), encoding="utf-8")
