"""Replicas of this process for tests, each set of them with group keys of its own.

TensorFlow remembers the devices of a group key and the shapes of an instance key for the life of a
process. A slot is a place along an axis that these tests do not use, so sets do not meet.
"""

import itertools
import pathlib
from typing import Any

import keras

from tests.trainer import conftest
from tfparallel_trainer import user
from tfparallel_trainer.data import arrays, feed
from tfparallel_trainer.mesh import shape
from tfparallel_trainer.step import replica, state, train

DEVICES = [f"/device:CPU:{number}" for number in range(conftest.LOGICAL_DEVICES)]
SLOTS = 1024
_used = itertools.count(1)  # 0 is that of a mesh without the axis


def module(build: Any, compile_model: Any) -> user.Module:
    """A user's module of two functions."""
    return user.Module(
        pathlib.Path(__file__), {"build_model": build, "compile_model": compile_model}
    )


def slot() -> int:
    """A slot that no set of this process has had."""
    return next(_used)


def build(made: user.Module, examples: Any, ranks: int) -> list[replica.Replica]:
    """Equal replicas, one on each device."""
    place_of_set = slot()
    mesh = shape.Mesh(data=ranks, stage=SLOTS)
    sample = keras.tree.map_structure(lambda part: None if part is None else part[:1], examples)
    found = []
    for place in range(ranks):
        replica.forget_names()
        rank = mesh.rank({shape.Axis.DATA: place, shape.Axis.STAGE: place_of_set})
        found.append(replica.build(made, mesh, rank, DEVICES[place], 1, sample))
    state.share(found, [0])
    return found


def feed_of(examples: Any, ranks: int, batch: int) -> arrays.ArrayFeed:
    """The examples (x, y, sample_weight) in their own order."""
    division = feed.Division(batch_size=batch, ranks=ranks, own=tuple(range(ranks)))
    return arrays.ArrayFeed(examples, division, None)


def run(
    made: user.Module, examples: Any, ranks: int, batch: int, **options: bool
) -> tuple[list[replica.Replica], list[train.Outcome]]:
    """Train over the examples once; gives the replicas and what the steps gave."""
    replicas = build(made, examples, ranks)
    given = feed_of(examples, ranks, batch)
    step = train.TrainStep(made, replicas, given.spec, **options)
    outcomes = [step(number, part, frozenset()) for number, part in enumerate(given.epoch(0, 0))]
    return replicas, outcomes
