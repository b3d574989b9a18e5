"""Replicas of this process for tests, each set of them with group keys of its own.

TensorFlow remembers the devices of a group key and the shapes of an instance key for the life of a
process.
"""

import dataclasses
import functools
import itertools
import pathlib
from typing import Any

import keras
import tensorflow as tf

from testing.trainer import logical_devices
from tfparallel_trainer import user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.data import arrays, batch_division
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import replica, state, updates

DEVICES = logical_devices.NAMES
_used = itertools.count(1000)  # what runs in this process takes those from 0


@functools.cache
def strategy(replicas: int) -> Any:
    """One for the process: TensorFlow remembers the devices of what a strategy sends.

    Strategies of two sizes send under the same keys: tests with several replicas take three.
    """
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy(DEVICES[0])
    return tf.distribute.MirroredStrategy(DEVICES[:replicas])


def module(build: Any, compile_model: Any) -> user.Module:
    """A user's module of two functions."""
    return user.Module(
        pathlib.Path(__file__), {"build_model": build, "compile_model": compile_model}
    )


def generation() -> int:
    """A generation that no mesh of this process has had."""
    return next(_used)


def build(module: user.Module, examples: Any, ranks: int) -> list[replica.Replica]:
    """Equal replicas, one on each device."""
    replicas = build_apart(module, examples, ranks)
    state.share(replicas, [0])
    return replicas


def build_apart(module: user.Module, examples: Any, ranks: int) -> list[replica.Replica]:
    """Replicas that have not shared their weights yet."""
    mesh = shape.MeshShape(data=ranks, generation=generation())
    sample = keras.tree.map_structure(lambda part: None if part is None else part[:1], examples)
    replicas = []
    for rank in range(ranks):
        replica.forget_names()
        replicas.append(replica.build(module, mesh, rank, DEVICES[rank], 1, sample))
    first = updates.find(replicas[0], sample, divided=ranks > 1)
    return [dataclasses.replace(built, updates=first.updates) for built in replicas]


def feed_of(examples: Any, ranks: int, batch: int, seed: int | None = None) -> arrays.ArraySource:
    """The examples (x, y, sample_weight), in their own order if there is no seed."""
    division = batch_division.BatchSharding(
        batch_size=batch, ranks=ranks, local_ranks=tuple(range(ranks))
    )
    return arrays.ArraySource(examples, division, seed)


def run(
    module: user.Module, examples: Any, ranks: int, batch: int, **options: Any
) -> tuple[list[replica.Replica], list[engine.StepResult]]:
    """Train over the examples once; gives the replicas and what the steps gave."""
    replicas = build(module, examples, ranks)
    batches = feed_of(examples, ranks, batch)
    step = mesh_steps.MeshTrainStep(module, replicas, batches.spec, batch, **options)
    outcomes = []
    for number, part in enumerate(batches.epoch(0, 0)):
        outcomes.append(step(number, part, frozenset()))
        if (check := outcomes[-1].check) is not None:
            check()
    return replicas, outcomes
