"""A rank's share of a model: the variables of its stage, its optimizer, its loss and metrics."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import shard
from tfparallel_trainer.mesh import collectives, shape
from tfparallel_trainer.split import head, initial, partition, recording, stages, update
from tfparallel_trainer.step import evaluate, replica


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A rank that trains a stage; all its variables live on `device`."""

    rank: int
    device: str
    place: Mapping[shape.Axis, int]
    stage: stages.Stage
    weights: dict[str, Any]
    """By key: those that its nodes read, of which some may be borrowed from another stage."""
    parts: dict[str, shard.Part]
    """Which part of each weight it has, by key."""
    seeds: dict[str, Any]
    """The first values of the variables of random layers (two integers: seed and counter)."""
    head: replica.Replica
    """The loss and the metrics, for which only the last stage has something."""
    optimizer: update.Optimizer

    @property
    def data(self) -> int:
        """Which share of a batch it works on."""
        return self.place[shape.Axis.DATA]

    @property
    def trained(self) -> dict[str, Any]:
        """Those of the weights that have gradients."""
        return {key: one for key, one in self.weights.items() if one.trainable}

    @property
    def statistics(self) -> dict[str, Any]:
        """Those of the weights that are not trained but gathered, or nothing at all."""
        return {key: one for key, one in self.weights.items() if not one.trainable}

    @property
    def is_last(self) -> bool:
        """Whether it computes the loss."""
        return bool(self.stage.outputs)

    @property
    def speaks(self) -> bool:
        """Whether it tells the loss and the metrics: of ranks that compute the same, one does."""
        alike = (shape.Axis.SPATIAL, shape.Axis.TENSOR)
        return self.is_last and not any(self.place[axis] for axis in alike)

    def penalty(self) -> float:
        """The regularisation of the weights that it owns."""
        return evaluate.penalty_of(one for key, one in self.trained.items() if self.owns(key))

    @property
    def counts(self) -> bool:
        """Whether it speaks for the ranks that have the same weights."""
        return not any(self.place[axis] for axis in shape.Axis if axis is not shape.Axis.STAGE)

    def owns(self, key: str) -> bool:
        """Whether the one copy of a weight that counts is this rank's."""
        return self.counts and key in self.stage.owned


def build(
    module: user.Module,
    skeleton: Any,
    divided: partition.Partition,
    rank: int,
    device: str,
    sample: Any,
) -> Member:
    """Create a rank's variables, with the values that those of the unsplit model would have.

    Args:
        module: the user's functions.
        skeleton: what `build_model` gave, built without its weights.
        divided: how its graph is divided.
        rank: which rank.
        device: where it lives.
        sample: (x, y, sample_weight) of one example, with a leading axis of 1.

    Raises:
        UserCodeError: the user's functions raise, or make what cannot be trained.
    """
    place = divided.mesh.coordinates(rank)
    stage = divided.stages[place[shape.Axis.STAGE]]
    data = divided.mesh.group(rank, shape.Axis.DATA)
    read = {*stage.owned, *dict(stage.borrowed)}
    keys: dict[str, shard.Part] = {key: () for key in divided.model.variables if key in read}
    with tf.device(device):
        values = dict(initial.values(divided.model.variables, keys))
        seeds = {key: values.pop(key) for key in keys if key.startswith(recording.SEED_PREFIX)}
        weights = {
            key: _variable(divided.model.variables[key], values.pop(key)) for key in list(values)
        }
        member = collectives.Communicator.of(data, rank, device)
        compiled = head.build(module, skeleton, divided.model, member, sample)
        trained = [weight for weight in weights.values() if weight.trainable]
        return Member(
            rank=rank,
            device=device,
            place=place,
            stage=stage,
            weights=weights,
            parts={key: keys[key] for key in weights},
            seeds=seeds,
            head=compiled,
            optimizer=update.Optimizer(compiled.model.optimizer, trained),
        )


def _variable(skeleton: Any, value: np.ndarray[Any, Any]) -> Any:
    """A variable that an optimizer treats as it would treat the skeleton's."""
    made = keras.Variable(
        value,
        dtype=skeleton.dtype,
        trainable=skeleton.trainable,
        name=skeleton.name,
        aggregation=skeleton.aggregation,
    )
    made.regularizer = skeleton.regularizer
    made.constraint = skeleton.constraint
    return made
