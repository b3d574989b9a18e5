"""The model of one process, in the host's memory: what the divided one has to equal."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import devices
from tfparallel_trainer.contract import verification
from tfparallel_trainer.objective import evaluate, metric_sums, replica, tracing
from tfparallel_trainer.objective.referee import comparison, keras_step, snapshots

MOST_WEIGHTS = 50_000_000
"""Of a model that is compared whole: all of them go through the network for each check."""
_BYTES = 128
"""Of memory for each weight: it, its optimizer's state, and what checks compute from them."""

Wholes = Mapping[str, comparison.Array]
"""Variables, or something of each, by key."""


def most_weights() -> int:
    """Return how many weights a model of one process may have, in the memory that is free."""
    return min(int(devices.free_bytes() / 2 / _BYTES), MOST_WEIGHTS)


@dataclasses.dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step of one process, or of all ranks, gives on a few examples."""

    loss: float
    gradients: Wholes
    """By key, of the loss times its scale."""
    changes: Wholes
    """What was added to each variable, by key."""
    metrics: Mapping[str, float]


class ReferenceModel:
    """The step of a model of one process."""

    def __init__(
        self,
        alone: replica.Replica,
        variables: Mapping[str, Any],
        spec: Any,
        *,
        takes_gradients: bool,
    ) -> None:
        """Trace the step for batches of a structure, tf.TensorSpec [None, …].

        Args:
            variables: the weights and the optimizer's, by key.
            takes_gradients: whether it applies those of the ranks, who draw alike for all examples.
        """
        self._replica = alone
        self._variables = dict(variables)
        by_id = {id(variable): key for key, variable in variables.items()}
        (phase,) = alone.computations
        self.trained = [by_id[id(variable)] for variable in phase.variables]
        """Keys of the weights that have gradients, in the order of the optimizer."""
        self._of_optimizer = {
            by_id[id(variable)] for variable in alone.optimizer.variables if id(variable) in by_id
        }
        specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in phase.variables]
        self.takes_gradients = takes_gradients
        """Whether it applies those of the ranks, which then are compared too."""
        self._traced = keras_step.trace(alone, spec, [specs] if takes_gradients else None)
        known_variables = [*tracing.variables_of(alone), *variables.values()]
        self._closures = tracing.find_closures(self._traced.graph, known_variables)

    @property
    def model(self) -> Any:
        """The Keras model."""
        return self._replica.model

    def follow(self, outside: Sequence[tuple[tracing.Kind, tf.Tensor]]) -> None:
        """Give its variables outside the model the values of those that ranks have."""
        remaining = list(outside)
        for closure in self._closures:
            index = next((n for n, (kind, _) in enumerate(remaining) if kind == closure.kind), None)
            if index is not None:
                _, value = remaining.pop(index)
                closure.assign(value)

    def run(
        self, step: int, examples: Any, before: Wholes, applied_gradients: Wholes
    ) -> StepOutcome:
        """Compute a step from a state, and apply gradients by key, if it takes any."""
        self._load(before)
        evaluate.reset_metrics([self._replica])
        applied = [
            tf.cast(tf.constant(applied_gradients[key]), self._variables[key].dtype)
            for key in self.trained
            if self.takes_gradients
        ]
        with self._restored():
            loss, (gradients,), values = self._traced(
                tf.constant(step, tf.int64), examples, [applied] if applied else None
            )
            changes = {
                key: value_of(variable) - before[key] for key, variable in self._variables.items()
            }
        return StepOutcome(
            loss=float(loss),
            gradients={
                key: _dense(gradient, before[key])
                for key, gradient in zip(self.trained, gradients, strict=True)
            },
            changes=changes,
            metrics=metric_sums.numbers(values),
        )

    def assigned(self, examples: Any, before: Wholes) -> frozenset[str]:
        """Keys of the trained weights that the forward pass itself assigns."""
        self._load(before)
        x, _, _ = examples
        with self._restored(), tf.device(self._replica.device):
            self.model(x, training=True)
            return frozenset(
                key for key in self.trained if (value_of(self._variables[key]) != before[key]).any()
            )

    def path(self, key: str) -> str:
        """The name of a variable for people."""
        return str(self._variables[key].path)

    def kind(self, key: str) -> verification.Quantity:
        """What a variable is."""
        if key in self._of_optimizer:
            return verification.Quantity.OPTIMIZER_STATE
        is_trained = key in self.trained
        kinds = verification.Quantity
        return kinds.WEIGHTS if is_trained else kinds.NON_TRAINABLE_STATE

    def dtype(self, key: str) -> tf.DType:
        """The type of a variable."""
        return tf.as_dtype(self._variables[key].dtype)

    def _load(self, wholes: Wholes) -> None:
        for key, variable in self._variables.items():
            variable.assign(wholes[key].astype(tf.as_dtype(variable.dtype).as_numpy_dtype))

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore what a step changes that is not the model's, such as a loss's variable."""
        before = snapshots.VariableSnapshot(snapshots.handles_of(self._traced))
        try:
            yield
        finally:
            before.restore()


def _dense(gradient: Any, like: comparison.Array) -> comparison.Array:
    if gradient is None:
        return np.zeros_like(like)
    if isinstance(gradient, (tuple, list)):
        values, rows = gradient
        total = np.zeros_like(like)
        np.add.at(total, rows.numpy(), np.asarray(values, np.float64))
        return total
    return np.asarray(gradient, np.float64)


def moved(wholes: Wholes, trained: Sequence[str], seed: int, size: float) -> Any:
    """Return a state with each trained weight moved by up to a share of its value."""
    random = np.random.default_rng(seed)
    factors = {key: 1 + size * random.uniform(-1, 1, wholes[key].shape) for key in sorted(trained)}
    return {**wholes, **{key: wholes[key] * factor for key, factor in factors.items()}}


def value_of(variable: Any) -> comparison.Array:
    """The value of a variable, as float64."""
    value: comparison.Array = snapshots.as_float64(tf.convert_to_tensor(variable))
    return value
