"""`python -m benchmarks` measures everything and writes docs/benchmarks.md, in half an hour."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence

from benchmarks import (
    checkpoints,
    input_wait,
    page,
    processes,
    results,
    slow_worker,
    start,
    steps,
)

ALL: dict[str, Callable[[results.Size], list[results.Result]]] = {
    "steps": steps.measure,
    "slow_worker": slow_worker.measure,
    "input_wait": input_wait.measure,
    "checkpoints": checkpoints.measure,
    "start": start.measure,
}
PAGE = processes.ROOT / "docs" / "benchmarks.md"


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write the page when everything was measured."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--only", choices=ALL, help="measure this alone; writes no page")
    parser.add_argument("--repeats", type=int, default=results.FULL.repeats)
    given = parser.parse_args(arguments)
    size = dataclasses.replace(results.FULL, repeats=given.repeats)
    load, _, _ = os.getloadavg()
    found: list[results.Result] = []
    for name in [given.only] if given.only else ALL:
        found += ALL[name](size)
        print("\n".join(result.row() for result in found), flush=True)
    if not given.only:
        PAGE.write_text(page.written(found, size, load), encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
