"""Replicas of this process for tests, each set of them with group keys of its own.

TensorFlow remembers the devices of a group key and the shapes of an instance key for the life of a
process.
"""

import itertools
import pathlib
from typing import Any

import keras

from testing.trainer import logical_devices
from tfparallel_trainer import user
from tfparallel_trainer.data import arrays, feed
from tfparallel_trainer.mesh import shape
from tfparallel_trainer.step import replica, state, train

DEVICES = logical_devices.NAMES
_used = itertools.count(1000)  # what runs in this process takes those from 0


def module(build: Any, compile_model: Any) -> user.Module:
    """A user's module of two functions."""
    return user.Module(
        pathlib.Path(__file__), {"build_model": build, "compile_model": compile_model}
    )


def generation() -> int:
    """A generation that no mesh of this process has had."""
    return next(_used)


def build(made: user.Module, examples: Any, ranks: int) -> list[replica.Replica]:
    """Equal replicas, one on each device."""
    mesh = shape.Mesh(data=ranks, generation=generation())
    sample = keras.tree.map_structure(lambda part: None if part is None else part[:1], examples)
    found = []
    for rank in range(ranks):
        replica.forget_names()
        found.append(replica.build(made, mesh, rank, DEVICES[rank], 1, sample))
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
