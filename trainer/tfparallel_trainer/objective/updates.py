"""Weights that the forward pass assigns, and how ranks keep them equal.

Keras' BatchNormalization is left out, which the log announces. Every other weight that a layer
assigns while it trains is tried on some examples at once and in two parts (see `trial`). If the
parts lead to the same value as the whole, each rank assigns it by itself. If the whole leads to the
mean of the parts' values, or to the sum of their changes, ranks join the values so. Other
assignments are refused.
"""

import contextlib
import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, random_state
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import checks, metric_sums, random_outputs, trial
from tfparallel_trainer.objective import replica as replicas

_COUNT, _FIRST = 6, 2
"""Examples of a trial, and those of its first part: parts of different sizes tell means from
sums."""

_TRIALS = 2

_ROUNDINGS = 64
"""Allowed rounding of an update, in units of the variable's precision."""

_NEAR = 1e-4
"""Allowed difference between parts and whole, relative to the update."""


class Joining(enum.Enum):
    """How ranks join the values that each has assigned to a weight."""

    SAME = "same"
    """The value does not depend on the examples, or layers themselves add up over ranks."""
    MEAN = "mean"
    """By the mean over the examples."""
    SUM = "sum"
    """By adding up the changes of all ranks."""


def find(replica: replicas.Replica, sample: Any, *, divided: bool) -> replicas.Replica:
    """Find the weights that the forward pass assigns; the sample is one example [1, …].

    If batches are divided over ranks, an update that they cannot join is a UserCodeError.
    """
    if divided:
        checks.refuse_stateful(replica.model, "replicas divide batches")
    if not checks.may_assign(replica.model) or checks.find_stateful(replica.model):
        return replica
    joinings: dict[int, set[Joining]] = {}
    adds_up = False
    for seed in range(_TRIALS):
        examples = random_outputs.varied(sample, _COUNT, seed)
        whole = _run(replica, examples, 0, _COUNT, None)
        parts = [
            _run(replica, examples, *bounds, whole.sums.addends)
            for bounds in ((0, _FIRST), (_FIRST, _COUNT))
        ]
        adds_up = adds_up or bool(whole.sums.addends)
        if divided and whole.hidden:
            raise errors.UserCodeError(
                f"{whole.hidden[0]} is a tf.Variable that the layer assigns while it trains, and "
                "Keras neither saves nor shares it. Let the layer make it by self.add_weight.",
                function="build_model",
            )
        for index in {*whole.assigned, *parts[0].assigned, *parts[1].assigned}:
            ends = [
                run.assigned.get(index, replica.model.weights[index]) for run in (whole, *parts)
            ]
            possible = set(_joinings(replica.model.weights[index], ends))
            joinings[index] = joinings.get(index, possible) & possible
    assigned = {}
    for index in sorted(joinings):
        chosen = next((joining for joining in Joining if joining in joinings[index]), None)
        if chosen is None and divided:
            raise errors.UserCodeError(_sentence(replica.model, index), function="build_model")
        assigned[index] = chosen or Joining.SAME
    return dataclasses.replace(replica, updates=Updates(assigned, adds_up))


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    assigned: dict[int, Any]
    """Values of weights after the forward pass, by their positions in the model."""
    sums: trial.Sums
    hidden: list[str]
    """TensorFlow's variables that it has changed."""


def _run(replica: Any, examples: Any, first: int, end: int, known_addends: Any) -> _Run:
    part = nest.convert(lambda leaf: tf.convert_to_tensor(leaf[first:end]), examples)
    alone = collectives.Communicator(0, 1, 0, replica.device)
    sums = trial.Sums(known_addends)

    def compute() -> None:
        with random_state.drawing_from(replica.generator):
            for phase in replica.computations:
                phase.fractions(part, alone, training=True)

    with (
        tf.device(replica.device),
        trial.unchanged(replica.model) as hidden,
        trial.moving_statistics(),
        trial.same_draws(),
        sums,
    ):
        isolated = metric_sums.isolate(replica, compute)
    places = {id(weight): index for index, weight in enumerate(replica.model.weights)}
    assigned = {places[id(weight)]: value for weight, value in isolated.assigned}
    return _Run(assigned, sums, hidden)


def _joinings(weight: Any, ends: Sequence[Any]) -> Iterator[Joining]:
    """The ways in which the values of two parts give that of the whole (whole, part, part)."""
    array, *results = (tf.convert_to_tensor(value).numpy() for value in (weight, *ends))
    if all(np.array_equal(end, results[0], equal_nan=array.dtype.kind == "f") for end in results):
        yield Joining.SAME
    kind = tf.as_dtype(weight.dtype)
    if not (kind.is_floating or kind.is_integer):
        return
    before, whole, first, second = (array.astype(np.float64) for array in (array, *results))
    near = 0.0
    if kind.is_floating:
        rounding = _ROUNDINGS * float(tf.experimental.numpy.finfo(kind.as_numpy_dtype).eps)
        near = rounding * _size(before, whole) + _NEAR * _size(whole - before)
        share = _FIRST / _COUNT
        if np.all(np.abs(share * first + (1 - share) * second - whole) <= near):
            yield Joining.MEAN
    if np.all(np.abs(first + second - before - whole) <= near):
        yield Joining.SUM


def _size(*arrays: Any) -> float:
    return max(float(np.max(np.abs(array), initial=0.0)) for array in arrays)


def _sentence(model: Any, index: int) -> str:
    weight = model.weights[index]
    owners = [layer for layer in checks.layers(model) if any(w is weight for w in layer.weights)]
    owner = min(owners, key=lambda layer: len(layer.weights)).name
    return (
        f"The layer {owner} assigns {weight.path} from the examples of a batch, which replicas "
        "can join by no mean or sum. Pass what it takes from the examples through "
        "tfparallel_trainer.layers.sum_over_replicas, or train on one device."
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Updates:
    """The weights that the forward pass assigns, by their places in the model."""

    joinings: dict[int, Joining] = dataclasses.field(default_factory=dict)
    adds_up: bool = False
    """Whether layers add up over replicas by themselves."""

    def __bool__(self) -> bool:
        """Whether ranks without examples have to take part in the forward pass."""
        return bool(self.joinings) or self.adds_up

    def weights(self, model: Any) -> list[Any]:
        """The weights of a model."""
        return [model.weights[index] for index in self.joinings]


class UpdateReduction:
    """Joins assigned weights after the forward pass; create one before it, in each trace."""

    def __init__(self, model: Any, updates: Updates) -> None:
        joined = {index: how for index, how in updates.joinings.items() if how is not Joining.SAME}
        self._weights = [(model.weights[index], how) for index, how in joined.items()]
        self._before = [tf.identity(weight.value) for weight, _ in self._weights]

    def contributions(self, count: tf.Tensor) -> list[tf.Tensor]:
        """The summands of a rank with `count` examples."""
        if not self._weights:
            return []
        brought = [tf.cast(count, tf.float64)[tf.newaxis]]
        for (weight, how), before in zip(self._weights, self._before, strict=True):
            value = weight.value - before if how is Joining.SUM else tf.identity(weight.value)
            factor = count if how is Joining.MEAN else tf.minimum(count, 1)
            weighted = value * tf.cast(factor, value.dtype)
            # Without examples, values may be NaN, and do not count.
            brought.append(tf.where(count > 0, weighted, tf.zeros_like(value)))
        return brought

    def assign(self, sums: Sequence[tf.Tensor]) -> None:
        """Assign the joined values."""
        if not self._weights:
            return
        total, *values = sums
        for (weight, how), before, value in zip(self._weights, self._before, values, strict=True):
            mean = how is Joining.MEAN
            weight.assign(value / tf.cast(total[0], value.dtype) if mean else before + value)


@contextlib.contextmanager
def local_kept(replica: replicas.Replica, is_empty: tf.Tensor) -> Iterator[None]:
    """Restore the weights that each rank gathers by itself, if its part has no examples."""
    kept = [
        weight
        for layer in (checks.layers(replica.model) if replica.updates else ())
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized
        for weight in layer.non_trainable_weights
    ]
    before = [tf.identity(weight.value) for weight in kept]
    yield
    for weight, value in zip(kept, before, strict=True):
        weight.assign(tf.where(is_empty, value, weight.value))
