"""Models that are split over virtual devices, and compared with a plain Keras loop.

`python -m testing.trainer.cases_split OUTPUT FLOATX LAYOUT CASE…` is one of several processes that
train cases together.
"""

import argparse
import dataclasses
import pathlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from testing.trainer import cases, reference, split_ranks
from testing.trainer import runs as trainings
from tfparallel_trainer import tasks
from tfparallel_trainer.comms import shape
from tfparallel_trainer.data import batch_division, order
from tfparallel_trainer.engines.split.execution import pipeline_steps, ranks

STEPS = 30
BATCH = 14
"""Divides the examples, so that each case is traced once; not by four, so that parts differ."""

CASES = cases.CASES


@dataclasses.dataclass(frozen=True, slots=True)
class MeshLayout:
    """A mesh, and into how many parts a share of a batch is divided."""

    degrees: Mapping[str, int]
    microbatches: int = 1
    shards_optimizer: bool = False
    """Whether ranks along the data axis share the optimizer's state."""
    recomputes: bool = False
    """Whether backward passes compute the activations of each node again."""

    def __str__(self) -> str:
        axes = " x ".join(f"{axis} {degree}" for axis, degree in self.degrees.items())
        options = {"shardOptimizer": self.shards_optimizer, "recompute": self.recomputes}
        return ", ".join([axes, *(name for name, is_set in options.items() if is_set)])

    def __hash__(self) -> int:
        return hash(str(self))

    def mesh(self, generation: int) -> shape.MeshShape:
        """The mesh, with group keys of its own."""
        return shape.MeshShape(**self.degrees, generation=generation)


LAYOUTS = (
    MeshLayout({"data": 2}),
    MeshLayout({"stage": 2}, 2),
    MeshLayout({"stage": 3}, 2),
    MeshLayout({"tensor": 2}),
    MeshLayout({"data": 2, "stage": 2}, 2),
    MeshLayout({"data": 2, "tensor": 2}),
    MeshLayout({"stage": 2, "tensor": 2}, 2),
    MeshLayout({"data": 2, "stage": 2, "tensor": 2}, 2),
    MeshLayout({"spatial": 2}),
    MeshLayout({"data": 2, "spatial": 2, "tensor": 2}),
    MeshLayout({"data": 2, "stage": 2, "spatial": 2, "tensor": 2}, 2),
)
WITH_OPTIONS = (
    MeshLayout({"stage": 2}, 2, recomputes=True),
    MeshLayout({"data": 2, "stage": 2}, 2, shards_optimizer=True, recomputes=True),
    MeshLayout({"spatial": 2}, recomputes=True),
)
"""Meshes whose devices hold less memory."""

APART = {
    MeshLayout({"stage": 2}, 2): cases.ProcessLayout(2, 1),
    MeshLayout({"tensor": 2}): cases.ProcessLayout(2, 1),
    MeshLayout({"data": 2, "stage": 2}, 2): cases.ProcessLayout(2, 2),
    MeshLayout({"stage": 2, "tensor": 2}, 2): cases.ProcessLayout(2, 2),
}
"""Those that are trained in several processes too, and in which."""

NORMALISED = "synchronized BatchNormalization"
TOGETHER = [
    case
    for case in CASES
    if case.optimizer == "Adam"
    and case.model in ("MLP", NORMALISED, "LSTM", "Transformer", "embedding")
]
"""What is trained in several processes."""
SPATIAL = ("CNN", NORMALISED)
"""Models with images, whose height can be divided."""


def applies(case: cases.Case, layout: MeshLayout) -> bool:
    """Whether a model is trained on a mesh: images only are divided in space."""
    if len(layout.degrees) == len(shape.Axis):
        return case.model == "CNN"
    return "spatial" not in layout.degrees or case.model in SPATIAL


def prepare(
    case: cases.Case,
    layout: MeshLayout,
    generation: int,
    *,
    same_dropout: bool = False,
    places: Mapping[int, str] | None = None,
) -> tuple[ranks.Ranks, batch_division.BatchSource, pipeline_steps.PipelineTrainStep]:
    """The ranks of a mesh, their examples and their step; `places` as `split_ranks.prepare`."""
    return split_ranks.prepare(
        case.functions(synchronized=True),
        layout.mesh(generation),
        layout.microbatches,
        batch=BATCH,
        same_dropout=same_dropout,
        shards_optimizer=layout.shards_optimizer,
        recomputes=layout.recomputes,
        places=places,
    )


def train(
    case: cases.Case,
    layout: MeshLayout,
    generation: int,
    number: int = STEPS,
    *,
    same_dropout: bool = False,
) -> tuple[list[Any], list[float]]:
    """Train some steps; returns the weights, put together, and the loss of each step."""
    members, examples, step = prepare(case, layout, generation, same_dropout=same_dropout)
    losses = _make_steps(step, examples, number)
    return whole(members), losses


def _make_steps(
    step: pipeline_steps.PipelineTrainStep, examples: batch_division.BatchSource, number: int
) -> list[float]:
    losses: list[float] = []
    for epoch in range(number):
        for batch in examples.epoch(epoch, 0):
            if len(losses) < number:
                losses.append(step(len(losses), batch, frozenset()).loss)
    return losses


def whole(replicas: ranks.Ranks) -> list[Any]:
    """The weights of a model, in its order, from the parts of all its ranks."""
    weights = local_weights(replicas)
    return [weights[key] for key in replicas.partition.model.variables if key in weights]


def local_weights(replicas: ranks.Ranks) -> dict[str, Any]:
    """The weights that ranks of this process have parts of, by key; NaN is what others have."""
    weights: dict[str, Any] = {}
    variables = replicas.partition.model.variables
    for rank in replicas.local:
        for key, weight in rank.weights.items():
            if rank.owns(key):
                empty = np.full(variables[key].shape, np.nan)
                weights.setdefault(key, empty)[rank.parts[key]] = weight.value.numpy()
    return weights


def train_together(
    runs: trainings.Runs,
    layout: MeshLayout,
    floatx: str,
    members: Sequence[cases.Case],
    *,
    new: bool,
) -> list[list[Any]]:
    """Train cases in several processes; returns the weights of each, put together."""
    processes = APART[layout]
    name = str(layout).replace(" ", "-")
    output = runs.folder / f"{name}-{floatx}"
    layout_index = str(LAYOUTS.index(layout))
    numbers = [str(CASES.index(case)) for case in members]
    arguments = (str(output), floatx, layout_index, *numbers)
    cases.run_together(runs, processes, "testing.trainer.cases_split", arguments, new=new)
    joined: dict[str, Any] = {}
    for process in range(processes.processes):
        with np.load(f"{output}-{process}.npz") as arrays:
            for key, array in arrays.items():
                before = joined.get(key, array)
                joined[key] = np.where(np.isnan(before), array, before)
    return [
        [joined[key] for key in sorted(joined) if key.startswith(f"{number}/")]
        for number in numbers
    ]


def measure_together(
    runs: trainings.Runs,
    layout: MeshLayout,
    floatx: str,
    members: Sequence[cases.Case],
    *,
    new: bool = False,
) -> cases.Cells:
    """Compare what several processes train with one process."""
    trained = train_together(runs, layout, floatx, members, new=new)
    cells: cases.Cells = {}
    with cases.precision(floatx):
        for case, trained_weights in zip(members, trained, strict=True):
            expected, _ = train_plainly(case, layout)
            value = cases.difference(trained_weights, expected, relative=floatx == "float32")
            cells[case.name, str(layout), floatx] = value
            print(f"{case.name} on {layout} in {floatx}: {value:.0e}", flush=True)
    return cells


def work(output: pathlib.Path, floatx: str, layout: MeshLayout, numbers: Sequence[int]) -> NoReturn:
    """Be one process: train cases with the others, and write the parts of the weights."""

    def train_all(processes: tasks.Cluster, names: Sequence[str]) -> Callable[[], object]:
        first = processes.me * len(names)
        places = {first + index: name for index, name in enumerate(names)}
        weights: dict[str, Any] = {}
        members: ranks.Ranks | None = None
        with cases.precision(floatx):
            for generation, number in enumerate(numbers):
                members, examples, step = prepare(CASES[number], layout, generation, places=places)
                _make_steps(step, examples, STEPS)
                variable_order = list(members.partition.model.variables)
                weights |= {
                    f"{number}/{variable_order.index(key):03}": array
                    for key, array in local_weights(members).items()
                }
        np.savez(f"{output}-{processes.me}.npz", **weights)
        assert members is not None
        return members.barrier

    cases.run_as_peer(train_all)


def train_plainly(
    case: cases.Case, layout: MeshLayout, number: int = STEPS, *, sees_microbatches: bool = False
) -> tuple[list[Any], list[float]]:
    """Train by a plain Keras loop; returns weights and losses.

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
    return reference.train(module, number, BATCH, cases.SEED, parts=parts)


def microbatches(layout: MeshLayout) -> list[list[int]]:
    """Places in a batch of those examples that go through a model together."""
    shares = order.split(BATCH, layout.degrees.get("data", 1))
    divided = [order.split(len(share), layout.microbatches) for share in shares]
    return [
        [share[row] for share, rows in zip(shares, divided, strict=True) for row in rows[turn]]
        for turn in range(layout.microbatches)
    ]


def train_on_mesh(
    functions: dict[str, Callable[..., Any]],
    mesh: shape.MeshShape,
    microbatches: int,
    batch: int,
    expected: list[Any],
    steps: int,
) -> tuple[list[float], float]:
    """Return the loss of each step on a mesh, and how far its weights are from expected ones.

    Args:
        functions: those of a user's module.
        mesh: of any generation.
        microbatches: parts of a batch that go through the stages.
        batch: examples of a step.
        expected: the weights after the steps.
        steps: how many.
    """
    replicas, examples, step = split_ranks.prepare_new(functions, mesh, microbatches, batch=batch)
    outcomes = [
        step(number, part, frozenset())
        for number, part in zip(range(steps), examples.epoch(0, 0), strict=False)
    ]
    difference = cases.difference(whole(replicas), expected, relative=False)
    return [result.loss for result in outcomes], difference


def main(arguments: Sequence[str]) -> None:
    """Be one process of a training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("floatx")
    parser.add_argument("layout", type=int)
    parser.add_argument("cases", type=int, nargs="+")
    options = parser.parse_args(arguments)
    work(options.output, options.floatx, LAYOUTS[options.layout], options.cases)


if __name__ == "__main__":
    main(sys.argv[1:])
