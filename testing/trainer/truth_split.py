"""The table of numerical truth for models that are split; see `truth` for the other tables.

`python -m testing.trainer.truth_split` trains everything and writes its part of docs/truth.md.
`python -m testing.trainer.truth_split train OUTPUT FLOATX` trains everything in one type.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from testing.trainer import launch, logical_devices, reference, split_ranks, truth
from testing.trainer.models import truth as models
from tfparallel_trainer.data import feed, order
from tfparallel_trainer.mesh import shape
from tfparallel_trainer.split.engine import ranks, steps

STEPS = 30
BATCH = 14
"""Divides the examples, so that each case is traced once; not by four, so that parts differ."""

HEADING = "## Split models"
LOSSES_HEADING = "## Losses of deep split models"
COMMAND = "python -m testing.trainer.truth_split"
CASES = truth.CASES


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """A mesh, and into how many parts a share of a batch is divided."""

    degrees: Mapping[str, int]
    microbatches: int = 1

    def __str__(self) -> str:
        return " x ".join(f"{axis} {degree}" for axis, degree in self.degrees.items())

    def mesh(self, generation: int) -> shape.Mesh:
        """The mesh, with group keys of its own."""
        return shape.Mesh(**self.degrees, generation=generation)


LAYOUTS = (
    Layout({"data": 2}),
    Layout({"stage": 2}, 2),
    Layout({"stage": 3}, 2),
    Layout({"tensor": 2}),
    Layout({"data": 2, "stage": 2}, 2),
    Layout({"data": 2, "tensor": 2}),
    Layout({"stage": 2, "tensor": 2}, 2),
    Layout({"data": 2, "stage": 2, "tensor": 2}, 2),
    Layout({"spatial": 2}),
    Layout({"data": 2, "spatial": 2, "tensor": 2}),
    Layout({"data": 2, "stage": 2, "spatial": 2, "tensor": 2}, 2),
)
NORMALISED = "synchronized BatchNormalization"
SPATIAL = ("CNN", NORMALISED)
"""Models with images, whose height can be divided."""

CURVES = {
    12: Layout({"data": 2, "stage": 2, "tensor": 2}, 2),
    40: Layout({"stage": 4}, 4),
}
"""Dense layers of a network, and the mesh that it is trained on to compare its losses."""
CURVE_STEPS = (1, 5, 10, 15, 20, 25, 30)

Cells = dict[tuple[str, str, str], float]
"""The difference for each case, layout and type."""


def applies(case: truth.Case, layout: Layout) -> bool:
    """Whether a model is trained on a mesh: images only are divided in space."""
    if len(layout.degrees) == len(shape.Axis):
        return case.model == "CNN"
    return "spatial" not in layout.degrees or case.model in SPATIAL


def prepared(
    case: truth.Case, layout: Layout, generation: int, *, same_dropout: bool = False
) -> tuple[ranks.Ranks, feed.Feed, steps.TrainStep]:
    """All ranks of a mesh, their examples and their step."""
    functions = case.functions(synchronized=True)
    mesh = layout.mesh(generation)
    return split_ranks.prepare(
        functions, mesh, layout.microbatches, batch=BATCH, same_dropout=same_dropout
    )


def trained(
    case: truth.Case,
    layout: Layout,
    generation: int,
    number: int = STEPS,
    *,
    same_dropout: bool = False,
) -> tuple[list[Any], list[float]]:
    """The weights after some steps, put together from their parts, and the loss of each step."""
    made, examples, step = prepared(case, layout, generation, same_dropout=same_dropout)
    losses: list[float] = []
    for epoch in range(number):
        for batch in examples.epoch(epoch, 0):
            if len(losses) < number:
                losses.append(step(len(losses), batch, frozenset()).loss)
    return whole(made), losses


def whole(made: ranks.Ranks) -> list[Any]:
    """The weights of a model, in its order, from the parts of all its ranks."""
    found: dict[str, Any] = {}
    for own in made.members:
        for key, weight in own.weights.items():
            if own.owns(key):
                empty = np.full(made.divided.model.variables[key].shape, np.nan)
                found.setdefault(key, empty)[own.parts[key]] = weight.value.numpy()
    return [found[key] for key in made.divided.model.variables if key in found]


def expected(
    case: truth.Case, layout: Layout, number: int = STEPS, *, sees_microbatches: bool = False
) -> tuple[list[Any], list[float]]:
    """The weights and losses that a plain Keras loop gives.

    Args:
        case: what to train.
        layout: the mesh and the microbatches that it is compared with.
        number: of steps.
        sees_microbatches: whether the model sees one microbatch after the other, as for
            BatchNormalization in any case; to others the whole batch is the same.
    """
    module = types.SimpleNamespace(**case.functions(synchronized=False))
    sees_microbatches |= case.model == NORMALISED
    parts = microbatches(layout) if sees_microbatches else ()
    return reference.train(module, number, BATCH, truth.SEED, parts=parts)


def microbatches(layout: Layout) -> list[list[int]]:
    """Places in a batch of those examples that go through a model together."""
    shares = order.split(BATCH, layout.degrees.get("data", 1))
    divided = [order.split(len(share), layout.microbatches) for share in shares]
    return [
        [share[row] for share, rows in zip(shares, divided, strict=True) for row in rows[turn]]
        for turn in range(layout.microbatches)
    ]


def cells_of(case: truth.Case, floatx: str, generations: Iterator[int]) -> Cells:
    """Train a case on all meshes."""
    cells: Cells = {}
    plain, _ = expected(case, Layout({}))
    for layout in LAYOUTS:
        if applies(case, layout):
            wanted = expected(case, layout)[0] if case.model == NORMALISED else plain
            weights, _ = trained(case, layout, next(generations))
            value = truth.difference(weights, wanted, relative=floatx == "float32")
            cells[case.name, str(layout), floatx] = value
            print(f"{case.name} on {layout} in {floatx}: {value:.0e}", flush=True)
    return cells


def residual(layers: int) -> truth.Case:
    """A deep network on real data."""
    return truth.Case(
        model=f"{layers} layers",
        also="",
        optimizer="Adam",
        build=functools.partial(models.residual, layers),
        loss=models.CLASSES,
        data=models.digits,
        make_optimizer=functools.partial(keras.optimizers.Adam, 0.003),
    )


def curves(generations: Iterator[int]) -> dict[int, tuple[list[float], list[float]]]:
    """For each depth the losses in one process, and those on a mesh, step by step."""
    found: dict[int, tuple[list[float], list[float]]] = {}
    with truth.precision("float64"):
        for layers, layout in CURVES.items():
            case = residual(layers)
            _, plain = expected(case, layout)
            _, split = trained(case, layout, next(generations))
            found[layers] = plain, split
    return found


def train(output: pathlib.Path, floatx: str) -> None:
    """Train everything in one type, and write what was found."""
    logical_devices.divide()
    cells: Cells = {}
    generations = itertools.count()
    with truth.precision(floatx):
        for case in CASES:
            cells |= cells_of(case, floatx, generations)
    losses = curves(generations) if floatx == "float64" else {}
    found = {
        "cells": [[*key, value] for key, value in cells.items()],
        "losses": [[layers, *both] for layers, both in losses.items()],
    }
    output.write_text(json.dumps(found), encoding="utf-8")


def measure() -> tuple[Cells, dict[int, tuple[list[float], list[float]]]]:
    """Train everything, each type in a process of its own; gives cells and losses."""
    cells: Cells = {}
    losses: dict[int, tuple[list[float], list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        outputs = [pathlib.Path(folder) / floatx for floatx in truth.LIMITS]
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "testing.trainer.truth_split", "train", output, output.name],
                cwd=launch.REPOSITORY,
                env={**os.environ, logical_devices.VARIABLE: str(devices_needed())},
            )
            for output in outputs
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            raise RuntimeError(f"the processes ended with {codes}")
        for output in outputs:
            found = json.loads(output.read_text(encoding="utf-8"))
            cells |= {(case, layout, kind): value for case, layout, kind, value in found["cells"]}
            losses |= {layers: (plain, split) for layers, plain, split in found["losses"]}
    return cells, losses


def devices_needed() -> int:
    """How many virtual devices a process has to have."""
    return max(layout.mesh(0).size for layout in LAYOUTS)


def section(cells: Cells) -> str:
    """Its part of the page."""
    lines = [
        HEADING,
        "",
        f"Generated by `{COMMAND}`. Each row compares a model on a",
        f"mesh, after {STEPS} steps of {BATCH} examples, with a plain Keras loop in one process",
        "over the same batches. float64 decides, as above; float32, where it stands behind it,",
        "shows rounding. Ranks are devices of one process. With stages there are 2 microbatches;",
        "BatchNormalization sees one of them at a time, so there the plain loop takes the same",
        "ones. `spatial` divides models with images.",
        "",
        "| model | mesh | SGD momentum | Adam |",
        "|---|---|---|---|",
    ]
    for model in dict.fromkeys(case.model for case in CASES):
        cases = [case for case in CASES if case.model == model]
        for layout in LAYOUTS:
            if applies(cases[0], layout):
                pairs = [
                    " / ".join(
                        f"{cells[case.name, str(layout), floatx]:.0e}"
                        for floatx in truth.LIMITS
                        if (case.name, str(layout), floatx) in cells
                    )
                    for case in cases
                ]
                lines.append(f"| {model} | {layout} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def section_of_losses(losses: Mapping[int, tuple[list[float], list[float]]]) -> str:
    """The part of the page that compares losses."""
    ends = " and ".join(f"{layers} layers on {CURVES[layers]}" for layers in losses)
    worst = max(
        abs(one - other) for both in losses.values() for one, other in zip(*both, strict=True)
    )
    head = " | ".join(f"{layers} layers, one process | split" for layers in losses)
    lines = [
        LOSSES_HEADING,
        "",
        f"Generated by `{COMMAND}`. Residual networks of dense layers on images of digits, with",
        f"Adam, float64 and batches of {BATCH}: {ends}. Losses of single",
        f"steps; over all {STEPS} steps they differ by at most {worst:.0e}.",
        "",
        f"| step | {head} |",
        "|---" * (1 + 2 * len(losses)) + "|",
    ]
    for step in CURVE_STEPS:
        shown = [f"{one[step - 1]:.6f}" for both in losses.values() for one in both]
        lines.append(f"| {step} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def parsed(text: str) -> Cells:
    """The cells of a part of the page."""
    cells: Cells = {}
    pattern = r"^\| ([^|]+) \| ([^|]+) \| ([^|]+e[+-][^|]+) \| ([^|]+) \|$"
    for model, layout, *pairs in re.findall(pattern, text, re.MULTILINE):
        for optimizer, pair in zip(("SGD momentum", "Adam"), pairs, strict=True):
            for floatx, value in zip(truth.LIMITS, pair.split(" / "), strict=False):
                cells[f"{model}, {optimizer}", layout, floatx] = float(value)
    return cells


def main(arguments: Sequence[str]) -> int:
    """Write the page, or train in one type."""
    parser = argparse.ArgumentParser(description="Train everything that is split.")
    modes = parser.add_subparsers(dest="mode")
    one = modes.add_parser("train", help="train everything in one type")
    one.add_argument("output", type=pathlib.Path)
    one.add_argument("floatx", choices=tuple(truth.LIMITS))
    given = parser.parse_args(arguments)
    if given.mode == "train":
        train(given.output, given.floatx)
        return 0
    cells, losses = measure()
    truth.write(HEADING, section(cells))
    truth.write(LOSSES_HEADING, section_of_losses(losses))
    return truth.ended(truth.faults(cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
