"""The model of a script: the caller's own on the first device, equal ones on the others."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors


class Models:
    """Gives the engine a model for each device.

    Args:
        given: a compiled model, or a function that returns one.
    """

    def __init__(self, given: Any) -> None:
        self._given = given
        self._own: Any = None
        self._trained: Any = None

    @property
    def own(self) -> Any:
        """The caller's model; there once the first is built."""
        return self._own

    @property
    def trained(self) -> Any:
        """The model of the first device."""
        return self._trained

    def build(self) -> Any:
        """The next device's model, compiled."""
        if callable(self._given) and not isinstance(self._given, keras.Model):
            model = self._checked(self._given(), "The function that fit was given returns")
            if self._own is None:
                self._own = self._trained = model
            return model
        if self._own is None:
            self._own = self._checked(self._given, "fit was given")
            self._trained = twin(self._own) if placed_by_strategy(self._own) else self._own
            return self._trained
        return twin(self._own)

    def hand_back(self) -> None:
        """Give the caller's model what was trained, where that is another."""
        if self._own is not self._trained:
            copy(self._trained, self._own)

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
    """Whether a strategy of the script's own holds the variables of a model."""
    return any(
        isinstance(variable.value, tf.distribute.DistributedValues)
        for variable in (*model.variables, *model.optimizer.variables)
    )


def twin(model: Any) -> Any:
    """Make a model of the same architecture, compiled alike, with the same weights.

    Raises:
        UserCodeError: Keras cannot make it from the model's own description.
    """
    made = _described(lambda: keras.models.clone_model(model), "architecture")
    if model.built and not made.built:
        made.build_from_config(model.get_build_config())
    _described(lambda: made.compile_from_config(model.get_compile_config()), "compilation")
    if model.built:
        made.optimizer.build(made.trainable_variables)
        copy(model, made)
    return made


def copy(source: Any, target: Any) -> None:
    """Give a model the weights and the optimizer's state of another one."""
    target.set_weights(source.get_weights())
    if source.optimizer.built:
        with target.distribute_strategy.scope():  # its variables lie beside the model's
            target.optimizer.build(target.trainable_variables)
        pairs = zip(source.optimizer.variables, target.optimizer.variables, strict=True)
        for variable, other in pairs:
            other.assign(variable.value.numpy())


def _described(make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise errors.UserCodeError(
            f"fit needs another model like the given one, and Keras cannot make it from the "
            f"model's {what} ({' '.join(str(error).split())[:300]}): give fit a function that "
            "builds and compiles the model instead."
        ) from error
