"""The phases of a training step: each has a loss, the weights that it trains, and an optimizer.

A compiled model has one. A model with a training step of its own defines `training_phases`, which
returns a `Phase` for each optimizer. Its losses are those of single examples, so they can be summed
over ranks before they are divided, like a compiled loss (see `loss`).
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import checks, label_shapes, loss, sparse_reads, synchrony


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """A part of a training step that a model defines itself.

    Args:
        losses: takes (x, y, sample_weight) and whether it trains; returns the loss of each example
            [n, …], or a dictionary of such tensors by name. Their means are minimised.
        layers: the layer or layers whose weights it trains.
        optimizer: of these weights.
    """

    losses: Callable[[Any, bool], Any]
    layers: Any
    optimizer: Any


class Compiled:
    """The one phase of a model with a compiled loss."""

    def __init__(
        self, model: Any, names: tuple[str, ...], *, has_targets: bool, adds: bool
    ) -> None:
        """Take a model, and whether its layers add something to the loss.

        If the data has no targets (y), the loss comes from layers. A missing loss, or one that does
        not fit the outputs, is a UserCodeError.
        """
        self._model = model
        self._names = names
        added_alone = not has_targets and adds and model.loss is None
        if not has_targets and not added_alone:
            raise errors.UserCodeError(
                "The data has no targets (y), and the model takes its loss from them. Give y, or "
                "compile the model without a loss and let its layers add it by add_loss.",
                function="training_data",
            )
        self.terms: Sequence[loss.Term] = [
            *(() if added_alone else loss.terms(model, names)),
            loss.ADDED,
        ]
        self.optimizer = model.optimizer

    @property
    def variables(self) -> list[Any]:
        """All trained weights."""
        return list(self._model.trainable_variables)

    @sparse_reads.by_handle()
    def fractions(
        self, part: Any, data: collectives.Communicator, *, training: bool
    ) -> list[loss.Fraction]:
        """The terms over a part of a batch, those of layers last; updates the metrics."""
        model = self._model
        x, y, weight = part
        y_pred = synchrony.forward(model, data, x) if training else model(x, training=False)
        model.compute_metrics(x, y, y_pred, weight)
        added = loss.added(model, tf.shape(nest.leaves(x)[0])[0])
        if len(self.terms) == 1:
            return [added]
        return [*loss.fractions(self.terms, self._names, y, y_pred, weight), added]

    def penalty(self) -> tf.Tensor:
        """The regularisation of all trained weights, which every rank computes alike."""
        penalty = tf.zeros((), keras.config.floatx())
        for variable in self._model.trainable_variables:
            if variable.regularizer is not None:
                penalty += tf.cast(variable.regularizer(variable), penalty.dtype)
        return penalty


class Custom:
    """A phase that the user defines; its losses are the whole loss, as in a `train_step`."""

    def __init__(self, model: Any, phase: Phase, sample: Any) -> None:
        """Try a phase on (x, y, sample_weight) of one example, as tensors.

        Anything but a phase, or a phase whose losses are not of examples, is a UserCodeError.
        """
        if not isinstance(phase, Phase):
            raise errors.UserCodeError(
                f"{type(model).__name__}.{checks.HOOK} returns {phase!r}: let it return a list of "
                "tfparallel_trainer.Phase.",
                function="build_model",
            )
        self._model = model
        self._phase = phase
        self.optimizer = phase.optimizer
        named = self.losses(sample, training=False)
        self.terms: Sequence[loss.Term] = [
            loss.Term(name, loss.no_function, loss.MEAN, value.dtype.name, 1.0)
            for name, value in named.items()
        ]

    @property
    def variables(self) -> list[Any]:
        """The trained weights of its layers, each once."""
        layers = keras.tree.flatten(self._phase.layers)
        weights = {
            id(variable): variable for layer in layers for variable in layer.trainable_variables
        }
        return list(weights.values())

    @sparse_reads.by_handle()
    def fractions(
        self, part: Any, data: collectives.Communicator, *, training: bool
    ) -> list[loss.Fraction]:
        """A term for each name."""
        with synchrony.within(self._model, data):
            named = self.losses(part, training=training)
        values = (named[term.output] for term in self.terms)
        return [
            loss.Fraction(tf.reduce_sum(value), tf.cast(tf.size(value), tf.float64))
            for value in values
        ]

    def penalty(self) -> tf.Tensor:
        """None: a phase that regularises its weights adds that to its losses."""
        return tf.zeros((), keras.config.floatx())

    def losses(self, part: Any, *, training: bool) -> dict[str, tf.Tensor]:
        """The loss of each example [n, …] by name."""
        value = self._phase.losses(part, training)
        named = dict(value) if isinstance(value, Mapping) else {"loss": value}
        for name, tensor in named.items():
            named[name] = tf.convert_to_tensor(tensor)
            if named[name].shape.rank == 0:
                raise errors.UserCodeError(
                    f"The loss {name!r} of a phase of {type(self._model).__name__} is one number, "
                    "which cannot be divided over ranks. Return a value for each example, as "
                    "keras.losses.mean_squared_error(y, y_pred) does.",
                    function="build_model",
                )
        return named


Computation = Compiled | Custom
"""A phase as a step computes it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Optimizers:
    """The optimizers of several phases, as one for saving and sharing their state."""

    variables: list[Any]
    use_ema: bool = False


def build(model: Any, sample: Any) -> tuple[list[Computation], tuple[str, ...]]:
    """The phases of a compiled model, built on one example as tensors; and its outputs' names."""
    if checks.defines_phases(model):
        return list(_built(model, sample)), ()
    x, y, weight = _as_stateful_layers_need(model, sample)
    # Assignments of this call, such as to a state or a count of calls, are not part of training.
    scope = keras.StatelessScope(collect_losses=True) if model.built else None
    with scope or contextlib.nullcontext():
        y_pred = model(x, training=False)
    names = loss.names_of(model, y_pred)
    adds = bool(scope.losses if scope else model.losses)
    compiled = Compiled(model, names, has_targets=y is not None, adds=adds)
    loss.check_shapes(compiled.terms, names, y, y_pred)
    label_shapes.check_metrics(model, y, y_pred)
    model.compute_metrics(x, y, y_pred, weight)
    model.reset_metrics()
    if not model.optimizer.built:  # an optimizer that scales the loss would get its state twice
        model.optimizer.build(model.trainable_variables)
    return [compiled], names


def _as_stateful_layers_need(model: Any, sample: Any) -> Any:
    """Repeat an example up to the batch size that a stateful model expects."""
    size = 1
    if checks.find_stateful(model):
        size = (keras.tree.flatten(getattr(model, "inputs", None) or [])[0].shape[0]) or 1
    return nest.convert(lambda leaf: tf.repeat(leaf, size, axis=0), sample)


def predict(model: Any, sample: Any) -> Any:
    """The outputs of a model. If it has phases, nothing, and these update its metrics."""
    if not checks.defines_phases(model):
        return model(sample[0], training=False)
    for phase in model.training_phases():
        phase.losses(sample, False)
    return None


def _built(model: Any, sample: Any) -> list[Custom]:
    """The phases of a model that defines them, with their optimizers built."""
    custom = [Custom(model, phase, sample) for phase in model.training_phases()]
    model.reset_metrics()
    _check(model, custom)
    for optimizer in {id(phase.optimizer): phase.optimizer for phase in custom}.values():
        if not optimizer.built:
            parts = [phase.variables for phase in custom if phase.optimizer is optimizer]
            optimizer.build(
                list({id(variable): variable for part in parts for variable in part}.values())
            )
    return custom


def _check(model: Any, custom: Sequence[Custom]) -> None:
    kind = type(model).__name__
    names = [term.output for phase in custom for term in phase.terms]
    if not names or len(set(names)) < len(names):
        raise errors.UserCodeError(
            f"{kind}.{checks.HOOK} gives the losses {', '.join(names) or 'of no phase'}: give each "
            "a name of its own.",
            function="build_model",
        )
    for phase in custom:
        if not isinstance(phase.optimizer, keras.optimizers.Optimizer) or not phase.variables:
            raise errors.UserCodeError(
                f"{kind}.{checks.HOOK} gives a phase with the optimizer {phase.optimizer!r} and "
                f"{len(phase.variables)} trainable weights. Give a Keras optimizer and layers that "
                "have weights once the losses were computed.",
                function="build_model",
            )
        checks.check_optimizer(phase.optimizer)
        if phase.optimizer.use_ema:
            raise errors.UserCodeError(
                f"The optimizer {type(phase.optimizer).__name__} of {kind}.{checks.HOOK} has "
                "use_ema=True: averages of the weights are kept for compiled models alone, so "
                "remove it.",
                function="build_model",
            )
