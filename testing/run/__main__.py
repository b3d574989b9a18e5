"""Run tests: `python -m testing.run [--tier unit,process] [--part …] [--branches]`.

The unit tier comes first and ends the run when it fails; then the others in three workers; then,
alone, the tests that judge by the wall clock. At most three failed tests run once more.

`--part essential` runs the unit tier and a few files of the tier process, `--part remaining` the
rest of the tiers.
"""

import argparse
import datetime
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

from testing import branches, paths
from testing.pytest_plugin import tiers, times
from testing.pytest_plugin.tiers import Part, Tier
from testing.run import long_page, parts, preconditions, processes, verdict

REPORTS = paths.ROOT / times.FOLDER

TIERS = {
    None: tiers.DEFAULT,
    Part.ESSENTIAL: frozenset({Tier.UNIT, Tier.PROCESS}),
    Part.REMAINING: tiers.DEFAULT - {Tier.UNIT},
}
"""What runs if the command line names no tiers, by the part that it names."""

LEFT_OUT = (
    "Left to `make test-all`: the rest of the tier process, the tier cluster (a real API server,"
    " which needs Go), and the tier e2e (real pods, which need root)."
)

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


class Runner:
    """Runs the parts in order."""

    def __init__(self, root: pathlib.Path = paths.ROOT, part: Part | None = None) -> None:
        self._options = [] if part is None else [f"--part={part}"]
        self._root = root
        self._part = part
        self._serial: list[str] = []
        self._retries = 0
        self.verdict = verdict.Verdict()

    def run(self, selected: frozenset[Tier]) -> None:
        """Run what is selected as far as this machine can."""
        if Tier.UNIT in selected:
            self._run_tiers("unit", [Tier.UNIT])
            self._retry()
            if self.verdict.failed or self.verdict.broken:
                return
        self.verdict.obstacles = preconditions.obstacles(selected - {Tier.UNIT}, self._part)
        missing = {obstacle.tier for obstacle in self.verdict.obstacles}
        for obstacle in self.verdict.obstacles:
            print(obstacle, flush=True)
        possible = selected - {Tier.UNIT} - missing
        if possible:
            name = "essential" if self._part is Part.ESSENTIAL else "parallel"
            self._run_tiers(name, sorted(possible))
        if Tier.LONG in possible:
            self._run_random()
        if self._serial:
            self._run("serial", self._serial)
        self._retry()

    def _run_tiers(self, name: str, selected: list[Tier]) -> None:
        workers = parts.workers(waits=Tier.UNIT not in selected)
        self._run(name, [parts.select(selected), "--without-serial", *workers])

    def _run_random(self) -> None:
        """Look for new examples of Hypothesis."""
        profile = ["-m", "hypothesis", "--hypothesis-profile=random"]
        tier = parts.select([Tier.UNIT, Tier.PROCESS])
        self._run("random", [tier, *profile, *parts.workers(waits=False)])

    def _run(self, name: str, arguments: list[str]) -> None:
        part = parts.run(name, [*arguments, *self._options], self._root)
        self._serial += part.report.serial
        self.verdict.add(name, part)

    def _retry(self) -> None:
        for test in [*self.verdict.to_retry()]:
            self._retries += 1
            print(f"\nonce more, alone: {test}", flush=True)
            if parts.run_alone(self._retries, test, self._root).code == parts.OK:
                self.verdict.mark_flaky(test)


def main() -> int:
    """Run what the command line selects, and print the result."""
    return run_until_interrupted(_run)


def run_until_interrupted(run: Callable[[], int]) -> int:
    """Return the exit code of a run; after Ctrl-C, end all that it started, and print one line."""
    processes.adopt_orphans()
    try:
        return run()
    except KeyboardInterrupt:
        processes.end_descendants()
        print("\nInterrupted: the tests have ended, and nothing that they started is running.")
        return INTERRUPTED


def _run() -> int:
    parser = argparse.ArgumentParser(prog="testing.run", description=__doc__)
    parser.add_argument("--tier", type=tiers.parse)
    parser.add_argument("--part", type=Part, choices=[*Part])
    parser.add_argument("--branches", action="store_true", help="measure them, and print them")
    arguments = parser.parse_args()
    selected = TIERS[arguments.part] if arguments.tier is None else arguments.tier
    if arguments.part is not Part.REMAINING:  # Its run completes that of the essential part.
        for file in REPORTS.glob("*.json"):
            file.unlink()
    if arguments.branches:
        branches.clear()
        os.environ.update(branches.variables())
    began = time.monotonic()
    runner = Runner(part=arguments.part)
    runner.run(selected)
    minutes = (time.monotonic() - began) / 60
    result, commit = runner.verdict, _commit()
    verdict.record_flaky(REPORTS / "flaky.txt", result.flaky, commit)
    if Tier.LONG in selected:
        today = datetime.datetime.now(datetime.UTC).date()
        failed = len(result.failed) + len(result.broken)
        long_page.write(long_page.Result(today, commit, result.passed, failed, minutes))
    if arguments.branches:
        branches.main()
    print(*summary(arguments.part, minutes, result), sep="\n", flush=True)
    return result.code


def summary(part: Part | None, minutes: float, result: verdict.Verdict) -> list[str]:
    """Return the last lines of a run, which say what it left out."""
    left_out = [LEFT_OUT] if part is Part.ESSENTIAL else []
    return [f"\nThe tests took {minutes:.1f} min.", *left_out, *result.lines()]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
