"""The table of numerical truth for models that are split; see `truth` for the other tables.

`python -m benchmarks.pages.truth_split` trains everything, and writes its part of
docs/benchmarks/truth.md.
`python -m benchmarks.pages.truth_split train OUTPUT FLOATX` trains everything in one type, and
`python -m benchmarks.pages.truth_split processes` writes the table of several processes alone.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import keras

from benchmarks.pages import truth
from testing import paths
from testing.trainer import cases, cases_split, logical_devices, runs
from testing.trainer.models import truth as models

HEADING = "## Split models"
LOSSES_HEADING = "## Losses of deep split models"
PROCESSES_HEADING = "## Split models in several processes"
COMMAND = "python -m benchmarks.pages.truth_split"

CURVES = {
    12: cases_split.MeshLayout({"data": 2, "stage": 2, "tensor": 2}, 2),
    40: cases_split.MeshLayout({"stage": 4}, 4),
}
"""Dense layers of a network, and the mesh that it is trained on to compare its losses."""
CURVE_STEPS = (1, 5, 10, 15, 20, 25, 30)
LAYOUTS = (*cases_split.LAYOUTS, *cases_split.WITH_OPTIONS)


LossPair = tuple[list[float], list[float]]
"""Losses in one process, and those on a mesh, step by step."""


def cells_of(case: cases.Case, floatx: str, generations: Iterator[int]) -> cases.Cells:
    """Train a case on all meshes."""
    cells: cases.Cells = {}
    plain, _ = cases_split.train_plainly(case, cases_split.MeshLayout({}))
    for layout in LAYOUTS:
        if cases_split.applies(case, layout):
            expected = plain
            if case.model == cases_split.NORMALISED:
                expected, _ = cases_split.train_plainly(case, layout)
            weights, _ = cases_split.train(case, layout, next(generations))
            value = cases.difference(weights, expected, relative=floatx == "float32")
            cells[case.name, str(layout), floatx] = value
            print(f"{case.name} on {layout} in {floatx}: {value:.0e}", flush=True)
    return cells


def residual(layers: int) -> cases.Case:
    """A deep network on real data."""
    return cases.Case(
        model=f"{layers} layers",
        also="",
        optimizer="Adam",
        build=functools.partial(models.residual, layers),
        loss=models.CLASSES,
        data=models.digits,
        make_optimizer=functools.partial(keras.optimizers.Adam, 0.003),
    )


def curves(generations: Iterator[int]) -> dict[int, LossPair]:
    """For each depth the losses in one process, and those on a mesh, step by step."""
    losses: dict[int, LossPair] = {}
    with cases.precision("float64"):
        for layers, layout in CURVES.items():
            case = residual(layers)
            _, plain = cases_split.train_plainly(case, layout)
            _, split = cases_split.train(case, layout, next(generations))
            losses[layers] = plain, split
    return losses


def train(output: pathlib.Path, floatx: str) -> None:
    """Train everything in one type, and write cells and losses."""
    logical_devices.divide()
    cells: cases.Cells = {}
    generations = itertools.count()
    with cases.precision(floatx):
        for case in cases_split.CASES:
            cells |= cells_of(case, floatx, generations)
    losses = curves(generations) if floatx == "float64" else {}
    results = {
        "cells": [[*key, value] for key, value in cells.items()],
        "losses": [[layers, *both] for layers, both in losses.items()],
    }
    output.write_text(json.dumps(results), encoding="utf-8")


def measure() -> tuple[cases.Cells, dict[int, LossPair]]:
    """Train everything, each type in a process of its own; gives cells and losses."""
    cells: cases.Cells = {}
    losses: dict[int, LossPair] = {}
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder) / floatx for floatx in cases.LIMITS]
        running = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.pages.truth_split",
                    "train",
                    output,
                    output.name,
                ],
                cwd=paths.ROOT,
                env={**os.environ, logical_devices.VARIABLE: str(devices_needed())},
            )
            for output in outputs
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError(f"the processes ended with {codes}")
        for output in outputs:
            results = json.loads(output.read_text(encoding="utf-8"))
            cells |= {(case, layout, kind): value for case, layout, kind, value in results["cells"]}
            losses |= {layers: (plain, split) for layers, plain, split in results["losses"]}
    return cells, losses


def measure_processes() -> cases.Cells:
    """Train in several processes, each mesh in processes of its own."""
    cells: cases.Cells = {}
    with tempfile.TemporaryDirectory() as folder:
        trainings = runs.Runs(pathlib.Path(folder))
        for floatx in cases.LIMITS:
            for layout in cases_split.APART:
                cells |= cases_split.measure_together(
                    trainings, layout, floatx, cases_split.TOGETHER, new=True
                )
    return cells


def devices_needed() -> int:
    """How many virtual devices a process has to have."""
    return max(layout.mesh(0).size for layout in LAYOUTS)


def section(cells: cases.Cells) -> str:
    """Its part of the page."""
    lines = [
        HEADING,
        "",
        textwrap.fill(
            f"Generated by `{COMMAND}`. Each row compares a model on a mesh with a plain Keras loop"
            f" in one process. Both take {cases_split.STEPS} steps of {cases_split.BATCH} examples."
            " float64 decides, as above; float32 shows rounding. Ranks are devices of one process."
            " With stages there are 2 microbatches, and BatchNormalization sees one at a time, also"
            " in the plain loop. `spatial` splits models with images.",
            width=100,
        ),
        "",
        "| model | mesh | SGD momentum | Adam |",
        "|---|---|---|---|",
    ]
    for model in dict.fromkeys(case.model for case in cases_split.CASES):
        both = [case for case in cases_split.CASES if case.model == model]
        for layout in LAYOUTS:
            if cases_split.applies(both[0], layout):
                pairs = [_cell(cells, case, layout) for case in both]
                lines.append(f"| {model} | {layout} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def section_of_processes(cells: cases.Cells) -> str:
    """The part of the page on several processes."""
    lines = [
        PROCESSES_HEADING,
        "",
        textwrap.fill(
            f"Generated by `{COMMAND}`. The same with Adam, but the ranks of a mesh are in several"
            " processes. These send each other over loopback what crosses stages and layers. The"
            " third column has processes x devices of each.",
            width=100,
        ),
        "",
        "| model, in processes | mesh | processes | Adam |",
        "|---|---|---|---|",
    ]
    for case in cases_split.TOGETHER:
        for layout in cases_split.APART:
            cell = _cell(cells, case, layout)
            lines.append(f"{_row_of_processes(case, layout)} {cell} |")
    return "\n".join(lines) + "\n"


def _cell(cells: cases.Cells, case: cases.Case, layout: cases_split.MeshLayout) -> str:
    """Return the differences of a case on a mesh, in each type that it was trained in."""
    keys = ((case.name, str(layout), floatx) for floatx in cases.LIMITS)
    return " / ".join(f"{cells[key]:.0e}" for key in keys if key in cells)


def _row_of_processes(case: cases.Case, layout: cases_split.MeshLayout) -> str:
    """How a row begins."""
    return f"| {case.model} | {layout} | {cases_split.APART[layout]} |"


def parse_processes(text: str) -> cases.Cells:
    """Read the cells of the part on several processes.

    Raises:
        ValueError: a row is missing, or has too few or too many cells.
    """
    cells: cases.Cells = {}
    for case, layout in itertools.product(cases_split.TOGETHER, cases_split.APART):
        row = truth.find_row(text, _row_of_processes(case, layout))
        values = row.strip(" |").split(" / ")
        for floatx, value in zip(cases.LIMITS, values, strict=True):
            cells[case.name, str(layout), floatx] = float(value)
    return cells


def section_of_losses(losses: Mapping[int, LossPair]) -> str:
    """The part of the page that compares losses."""
    ends = " and ".join(f"{layers} layers on {CURVES[layers]}" for layers in losses)
    worst = max(
        abs(loss - other) for both in losses.values() for loss, other in zip(*both, strict=True)
    )
    head = " | ".join(f"{layers} layers, one process | split" for layers in losses)
    lines = [
        LOSSES_HEADING,
        "",
        textwrap.fill(
            f"Generated by `{COMMAND}`. Losses of residual networks of dense layers, with Adam,"
            f" float64 and batches of {cases_split.BATCH}. Their sizes: {ends}. Over all"
            f" {cases_split.STEPS} steps they differ by at most {worst:.0e}.",
            width=100,
        ),
        "",
        f"| step | {head} |",
        "|---" * (1 + 2 * len(losses)) + "|",
    ]
    for step in CURVE_STEPS:
        shown = [f"{curve[step - 1]:.6f}" for both in losses.values() for curve in both]
        lines.append(f"| {step} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def parse(text: str) -> cases.Cells:
    """Read the cells of the part.

    Raises:
        ValueError: a row is missing, or has too few or too many cells.
    """
    cells: cases.Cells = {}
    for case in cases_split.CASES:
        for layout in LAYOUTS:
            if cases_split.applies(case, layout):
                row = truth.find_row(text, f"| {case.model} | {layout} |")
                pairs = re.findall(r"(\S+) / (\S+)", row)
                optimizers = [
                    case_of_model.optimizer
                    for case_of_model in cases.CASES
                    if case_of_model.model == case.model
                ]
                pair = dict(zip(optimizers, pairs, strict=True))[case.optimizer]
                for floatx, value in zip(cases.LIMITS, pair, strict=True):
                    cells[case.name, str(layout), floatx] = float(value)
    return cells


def parse_losses(text: str) -> dict[int, list[float]]:
    """Read the losses of each step: for each depth of one process, and split.

    Raises:
        ValueError: a row is missing, or has too few or too many cells.
    """
    losses = {}
    for step in CURVE_STEPS:
        row = truth.find_row(text, f"| {step} |").strip(" |").split(" | ")
        if len(row) != 2 * len(CURVES):
            raise ValueError(f"Step {step} has {len(row)} losses, not {2 * len(CURVES)}.")
        losses[step] = [float(cell) for cell in row]
    return losses


def loss_faults(losses: Mapping[int, Sequence[float]]) -> list[str]:
    """Steps whose losses are not those of one process, to the digits of the page."""
    return [
        f"step {step} has the losses {row}, split and not"
        for step, row in losses.items()
        if row[::2] != row[1::2]
    ]


def main(arguments: Sequence[str]) -> int:
    """Write the page, or train in one type."""
    parser = argparse.ArgumentParser(description="Train everything that is split.")
    modes = parser.add_subparsers(dest="mode")
    modes.add_parser("processes", help="write the table of several processes")
    train_parser = modes.add_parser("train", help="train everything in one type")
    train_parser.add_argument("output", type=pathlib.Path)
    train_parser.add_argument("floatx", choices=tuple(cases.LIMITS))
    options = parser.parse_args(arguments)
    if options.mode == "train":
        train(options.output, options.floatx)
        return 0
    together = measure_processes()
    truth.write(PROCESSES_HEADING, section_of_processes(together))
    if options.mode == "processes":
        return truth.conclude(cases.faults(together))
    cells, losses = measure()
    truth.write(HEADING, section(cells))
    written = section_of_losses(losses)
    truth.write(LOSSES_HEADING, written)
    return truth.conclude(
        cases.faults(together) + cases.faults(cells) + loss_faults(parse_losses(written))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
