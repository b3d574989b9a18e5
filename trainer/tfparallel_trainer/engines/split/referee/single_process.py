"""The model of one process, next to the first one's part of the divided model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfparallel_trainer import random_state, user
from tfparallel_trainer.checkpoint import keys, slots
from tfparallel_trainer.comms import shape
from tfparallel_trainer.objective import replica
from tfparallel_trainer.objective.referee import findings, judgement, reference_model


class UnfitError(Exception):
    """The model of one process cannot be built; the text says why."""


def build(
    module: user.Module, mesh: shape.MeshShape, device: str, seed: int, sample: Any
) -> replica.Replica | str:
    """Build the model of one process, as the user's functions do, or return why it fails."""
    replica.forget_names()
    try:
        with random_state.seeded(seed):  # data functions may draw later
            single = replica.build(module, mesh, 0, device, seed, sample)
    except Exception as error:  # of the user's code, as for another call of build_model
        return findings.describe_failure(error)
    finally:
        replica.forget_names()
    # Ranks draw from the first number on; this model has been called, which may have drawn.
    seeds = [(variable, first * np.array([1, 0], first.dtype)) for variable, first in single.seeds]
    return dataclasses.replace(single, seeds=seeds)


def find_obstacle(count: int) -> str:
    """Return why the model of one process cannot have so many weights; empty: it can."""
    most = reference_model.most_weights()
    if count <= most:
        return ""
    return f"a model of more than {most:,} weights, which one process cannot hold"


def judge(
    alone: replica.Replica | str, spec: Any, named: Mapping[slots.Slot, str]
) -> judgement.Judge:
    """Return the judge, which compares with the model of one process.

    Args:
        alone: that model; an UnfitError of its text without it.
        spec: tf.TensorSpec [None, …] of a batch.
        named: the keys of the optimizer's variables (see `slots`).
    """
    if isinstance(alone, str):
        raise UnfitError(alone)
    weights = keys.of_weights(alone.model)
    by_id = {id(variable): key for key, variable in weights.items()}
    (phase,) = alone.computations
    trained = {by_id[id(variable)]: variable for variable in phase.variables}
    optimizer = alone.optimizer
    of_optimizer = zip(slots.find_slots(optimizer, trained), optimizer.variables, strict=True)
    variables = {**weights, **{named[slot]: variable for slot, variable in of_optimizer}}
    return judgement.Judge(
        reference_model.ReferenceModel(alone, variables, spec, takes_gradients=True)
    )
