"""What the parts of a run add up to. Pure, but for the list of flaky tests."""

import dataclasses
import pathlib

from testing.run import parts, preconditions

MOST_RETRIES = 3
PASSED, FAILED, BROKEN, TIERS_MISSING = 0, 1, 2, 3
"""Exit codes of the runner."""


@dataclasses.dataclass(slots=True)
class Verdict:
    """Grows with each part of a run."""

    passed: int = 0
    skipped: int = 0
    failed: list[str] = dataclasses.field(default_factory=list)
    flaky: list[str] = dataclasses.field(default_factory=list)
    broken: list[str] = dataclasses.field(default_factory=list)
    """Parts of which pytest itself failed, and files that could not be collected."""

    obstacles: list[preconditions.Obstacle] = dataclasses.field(default_factory=list)

    def add(self, name: str, part: parts.Part) -> None:
        """Count a part."""
        self.passed += part.report.count("passed")
        self.skipped += part.report.count("skipped")
        self.failed += part.report.failed
        if part.broke:
            self.broken += part.report.errors or [f"{name} (pytest ended with {part.code})"]

    def to_retry(self) -> list[str]:
        """The failed tests, if they are few enough to run once more."""
        return self.failed if len(self.failed) + len(self.flaky) <= MOST_RETRIES else []

    def mark_flaky(self, test: str) -> None:
        """Note that a failed test has passed alone."""
        self.failed.remove(test)
        self.flaky.append(test)
        self.passed += 1

    @property
    def code(self) -> int:
        """The exit code."""
        if self.broken:
            return BROKEN
        if self.failed:
            return FAILED
        return TIERS_MISSING if self.obstacles else PASSED

    def lines(self) -> list[str]:
        """The summary; totals alone in its last line."""
        return [
            *map(str, self.obstacles),
            *(f"flaky: {test}" for test in self.flaky),
            *(f"failed: {test}" for test in self.failed),
            *(f"broken: {part}" for part in self.broken),
            f"{self.skipped} skipped",
            f"{self.passed} passed, {len(self.failed) + len(self.broken)} failed",
        ]


def record_flaky(file: pathlib.Path, tests: list[str], commit: str) -> None:
    """Append the names to the list of flaky tests."""
    if tests:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as output:
            output.writelines(f"{commit} {test}\n" for test in tests)
