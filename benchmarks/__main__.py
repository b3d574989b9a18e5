"""`python -m benchmarks` measures everything and writes its pages in docs/, in an hour.

With `--only NAME` it measures one thing and renews its rows of the page.
"""

import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks import (
    builds,
    callbacks,
    checkpoints,
    input_wait,
    memory_copies,
    page,
    pod_restarts,
    processes,
    python_work,
    restarts,
    results,
    ring_options,
    sharing,
    slow_worker,
    split_data,
    split_limit,
    split_memory,
    split_optimizer,
    split_pipeline,
    split_planned_memory,
    split_planning,
    split_predicted,
    split_recomputation,
    split_start,
    split_traffic,
    start,
    steps,
    verification,
)
from benchmarks.operators import flood, loop, starts, steady

Measure = Callable[[results.Size], list[results.Result]]
TRAINER: dict[str, Measure] = {
    "steps": steps.measure,
    "slow_worker": slow_worker.measure,
    "input_wait": input_wait.measure,
    "checkpoints": checkpoints.measure,
    "start": start.measure,
    "restarts": restarts.measure,
    "memory_copies": memory_copies.measure,
    "sharing": sharing.measure,
    "ring_options": ring_options.measure,
    "callbacks": callbacks.measure,
    "python_work": python_work.measure,
    "verification": verification.measure,
}
PODS: dict[str, Measure] = {"pod_restarts": pod_restarts.measure}
SPLIT: dict[str, Measure] = {
    "split_pipeline": split_pipeline.measure,
    "split_start": split_start.measure,
    "split_data": split_data.measure,
    "split_memory": split_memory.measure,
    "split_optimizer": split_optimizer.measure,
    "split_recomputation": split_recomputation.measure,
    "split_limit": split_limit.measure,
    "split_traffic": split_traffic.measure,
    "split_predicted": split_predicted.measure,
    "split_planned_memory": split_planned_memory.measure,
    "split_planning": split_planning.measure,
}
OPERATOR: dict[str, Measure] = {
    "operator_starts": starts.measure,
    "operator_steady": steady.measure,
    "operator_loop": loop.measure,
    "operator_flood": flood.measure,
}
TRAINING = TRAINER | SPLIT
PAGE = processes.ROOT / "docs" / "benchmarks/speed.md"
OPERATOR_PAGE = processes.ROOT / "docs" / "benchmarks/operator-speed.md"
Sections = tuple[tuple[pathlib.Path, page.Section, Mapping[str, Measure]], ...]
"""Pages, their sections, and what is measured for each."""
SECTIONS: Sections = (
    (PAGE, page.TRAINER, TRAINER | PODS),
    (PAGE, page.SPLIT, SPLIT),
    (OPERATOR_PAGE, page.OPERATOR, OPERATOR),
)


def main(arguments: Sequence[str]) -> int:
    """Measure, print the rows, and write them into the page."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=TRAINING | PODS | OPERATOR, help="measure this alone, and renew its rows"
    )
    parser.add_argument(
        "--beside",
        type=pathlib.Path,
        metavar="FOLDER",
        help="measure restarts and split_start alone, next to another build with its own .venv",
    )
    parser.add_argument("--repeats", type=int, default=results.FULL.repeats)
    options = parser.parse_args(arguments)
    size = dataclasses.replace(results.FULL, repeats=options.repeats)
    sections = SECTIONS
    if options.beside is not None:
        sections = _beside(options.beside)
    for path, section, measures in sections:
        load, _, _ = os.getloadavg()
        measured: list[results.Result] = []
        for name in measures:
            if options.only in (None, name):
                measured += measures[name](size)
                print("\n".join(result.row() for result in measured), flush=True)
        if measured:
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            path.write_text(page.renewed(text, section, measured, size, load), encoding="utf-8")
            print(f"wrote {path}")
    return 0


def _beside(other: pathlib.Path) -> Sections:
    measure_restarts = functools.partial(builds.measure_restarts, other)
    measure_starts = functools.partial(builds.measure_starts, other)
    return (
        (PAGE, page.TRAINER, {"restarts": measure_restarts}),
        (PAGE, page.SPLIT, {"split_start": measure_starts}),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
