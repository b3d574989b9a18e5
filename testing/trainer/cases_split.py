"""Models that are split over virtual devices, and compared with a plain Keras loop."""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from testing.trainer import cases, reference, split_ranks, weights
from tfparallel_trainer.comms import shape
from tfparallel_trainer.data import feed, order
from tfparallel_trainer.engines.split.engine import ranks, steps

STEPS = 30
BATCH = 14
"""Divides the examples, so that each case is traced once; not by four, so that parts differ."""

CASES = cases.CASES


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


def applies(case: cases.Case, layout: Layout) -> bool:
    """Whether a model is trained on a mesh: images only are divided in space."""
    if len(layout.degrees) == len(shape.Axis):
        return case.model == "CNN"
    return "spatial" not in layout.degrees or case.model in SPATIAL


def prepare(
    case: cases.Case, layout: Layout, generation: int, *, same_dropout: bool = False
) -> tuple[ranks.Ranks, feed.Source, steps.TrainStep]:
    """All ranks of a mesh, their examples and their step."""
    functions = case.functions(synchronized=True)
    mesh = layout.mesh(generation)
    return split_ranks.prepare(
        functions, mesh, layout.microbatches, batch=BATCH, same_dropout=same_dropout
    )


def train(
    case: cases.Case,
    layout: Layout,
    generation: int,
    number: int = STEPS,
    *,
    same_dropout: bool = False,
) -> tuple[list[Any], list[float]]:
    """Train some steps; returns the weights, put together, and the loss of each step."""
    members, examples, step = prepare(case, layout, generation, same_dropout=same_dropout)
    losses: list[float] = []
    for epoch in range(number):
        for batch in examples.epoch(epoch, 0):
            if len(losses) < number:
                losses.append(step(len(losses), batch, frozenset()).loss)
    return whole(members), losses


def whole(replicas: ranks.Ranks) -> list[Any]:
    """The weights of a model, in its order, from the parts of all its ranks."""
    weights: dict[str, Any] = {}
    variables = replicas.partition.model.variables
    for rank in replicas.local:
        for key, weight in rank.weights.items():
            if rank.owns(key):
                empty = np.full(variables[key].shape, np.nan)
                weights.setdefault(key, empty)[rank.parts[key]] = weight.value.numpy()
    return [weights[key] for key in variables if key in weights]


def train_plainly(
    case: cases.Case, layout: Layout, number: int = STEPS, *, sees_microbatches: bool = False
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


def microbatches(layout: Layout) -> list[list[int]]:
    """Places in a batch of those examples that go through a model together."""
    shares = order.split(BATCH, layout.degrees.get("data", 1))
    divided = [order.split(len(share), layout.microbatches) for share in shares]
    return [
        [share[row] for share, rows in zip(shares, divided, strict=True) for row in rows[turn]]
        for turn in range(layout.microbatches)
    ]


def compare(
    functions: dict[str, Callable[..., Any]],
    mesh: shape.Mesh,
    microbatches: int,
    batch: int,
    expected: tuple[list[Any], list[float]],
) -> None:
    """See that steps on a mesh lead to the losses and weights of one process.

    Args:
        functions: those of a user's module.
        mesh: of any generation.
        microbatches: parts of a batch that go through the stages.
        batch: examples of a step.
        expected: the weights after the steps, and the loss of each.
    """
    expected_weights, losses = expected
    replicas, examples, step = split_ranks.prepare_new(functions, mesh, microbatches, batch=batch)
    outcomes = [
        step(number, part, frozenset())
        for number, part in zip(range(len(losses)), examples.epoch(0, 0), strict=False)
    ]
    assert [one.loss for one in outcomes] == pytest.approx(losses, rel=1e-10)
    difference = cases.difference(whole(replicas), expected_weights, relative=False)
    assert difference <= weights.TOLERANCE
