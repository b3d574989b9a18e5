"""The model of a script: the caller's own on the first device, equal ones on the others."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, random_state
from tfparallel_trainer.objective import checks


class Models:
    """Builds a model for each device, and returns the trained weights to the caller."""

    def __init__(self, model_or_function: Any, *, remote: bool) -> None:
        self._model_or_function = model_or_function
        self._remote = remote
        is_model = isinstance(model_or_function, keras.Model)
        self._by_function = callable(model_or_function) and not is_model
        self._trained: Any = None

    def build(self) -> Any:
        """The next device's model, compiled."""
        if self._by_function:
            model = self._call()
        else:
            model = self._checked(self._model_or_function, "fit was given")
            if self._trained is not None or self._remote or placed_by_strategy(model):
                model = twin(model)
        if self._trained is None:
            self._trained = model
        return model

    def seeded(self, seed: int) -> contextlib.AbstractContextManager[None]:
        """The random generators while the next model is built, and data are opened.

        The caller's model draws from the script's generators: each new one gets new weights.
        """
        is_own = not self._by_function and self._trained is None
        return contextlib.nullcontext() if is_own else random_state.seeded(seed)

    @property
    def has_twins(self) -> bool:
        """Whether other devices get models by the description of the caller's."""
        return not self._by_function

    def hand_back(self) -> Any:
        """Give the caller's model as it is trained; a function's is that, unless servers had it."""
        model = self._model_or_function
        if self._by_function:
            model = self._call() if self._remote else self._trained
        if model is not self._trained:
            copy(self._trained, model)
        return model

    def _call(self) -> Any:
        return self._checked(self._model_or_function(), "The function that fit was given returns")

    @staticmethod
    def _checked(model: Any, how: str) -> Any:
        if not isinstance(model, keras.Model):
            raise errors.UserCodeError(
                f"{how} {type(model).__name__}: give a compiled keras.Model, or a function that "
                "returns one."
            )
        if not model.compiled or model.optimizer is None:
            raise errors.UserCodeError(
                "The model is not compiled: call model.compile(optimizer, loss) before fit."
            )
        return model


def placed_by_strategy(model: Any) -> bool:
    """Whether a strategy of the script holds the variables of a model."""
    return any(
        isinstance(variable.value, tf.distribute.DistributedValues)
        for variable in (*model.variables, *model.optimizer.variables)
    )


def twin(model: Any) -> Any:
    """Make a model of the same architecture and weights, compiled alike, by its description."""
    twin_model = _described(lambda: keras.models.clone_model(model), "architecture")
    _build_like(model, twin_model)
    _described(lambda: _set_alike(model, twin_model), "layers and weights")
    _described(lambda: twin_model.compile_from_config(model.get_compile_config()), "compilation")
    _exclude_alike(model, twin_model)
    if model.built:
        _described(lambda: copy(model, twin_model), "weights")
    return twin_model


def _set_alike(source: Any, target: Any) -> None:
    """Copy settings that the description lacks, or that were made after a layer was built."""
    for layer, other in zip(checks.layers(source), checks.layers(target), strict=True):
        other._trainable = layer._trainable  # the property's setter would set weights, too
    weights = {id(weight) for weight in source.weights}
    for weight, other in zip(source.variables, target.variables, strict=True):
        if id(weight) not in weights:  # seeds, from which each rank draws other numbers
            other.assign(weight.value)
        other.trainable = weight.trainable
        other.regularizer = weight.regularizer
        other.constraint = weight.constraint


def _exclude_alike(source: Any, target: Any) -> None:
    """Exclude the same weights from weight decay, which no configuration contains."""
    optimizers = [source.optimizer, target.optimizer]
    while optimizers:
        first, second = optimizers
        excluded = getattr(first, "_exclude_from_weight_decay", None)
        if excluded is not None:
            pairs = zip(source.variables, target.variables, strict=True)
            second._exclude_from_weight_decay_pattern = first._exclude_from_weight_decay_pattern
            second._exclude_from_weight_decay = {
                second._var_key(other)
                for variable, other in pairs
                if first._var_key(variable) in excluded
            }
        optimizers = [
            optimizer.inner_optimizer
            for optimizer in optimizers
            if hasattr(optimizer, "inner_optimizer")
        ]


def copy(source: Any, target: Any) -> None:
    """Copy the weights and the optimizer's state of another model."""
    _build_like(source, target)
    target.set_weights(source.get_weights())
    if source.optimizer.built:
        if not target.optimizer.built:
            with target.distribute_strategy.scope():  # its variables lie beside the model's
                target.optimizer.build(target.trainable_variables)
        pairs = zip(source.optimizer.variables, target.optimizer.variables, strict=True)
        for variable, other in pairs:
            other.assign(tf.convert_to_tensor(variable).numpy())


def _build_like(source: Any, target: Any) -> None:
    """Build a model that waits for its first input as another one was built by its own."""
    if source.built and not target.built:
        target.build_from_config(source.get_build_config())


def _described(make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise errors.UserCodeError(
            f"fit needs a second copy of the model, and Keras cannot clone it from the "
            f"model's {what} ({' '.join(str(error).split())[:300]}). Give fit a function that "
            "builds and compiles the model instead."
        ) from error
