"""The model of a script: the caller's own on the first device, equal ones on the others."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, random_state


class Models:
    """Gives the engine a model for each device, and the caller one with the trained weights.

    Args:
        given: a compiled model, or a function that returns one.
        remote: whether what is trained lives on servers, which end with training.
    """

    def __init__(self, given: Any, *, remote: bool) -> None:
        self._given = given
        self._remote = remote
        self._by_function = callable(given) and not isinstance(given, keras.Model)
        self._trained: Any = None

    def build(self) -> Any:
        """The next device's model, compiled."""
        if self._by_function:
            model = self._call()
        else:
            given = self._checked(self._given, "fit was given")
            itself = self._trained is None and not self._remote and not placed_by_strategy(given)
            model = given if itself else twin(given)
        if self._trained is None:
            self._trained = model
        return model

    def seeded(self, seed: int) -> contextlib.AbstractContextManager[None]:
        """The random generators while the next model is built, and data are opened.

        The caller's model draws from the script's generators, as in Keras' fit: each new model of a
        script gets new weights.
        """
        is_own = not self._by_function and self._trained is None
        return contextlib.nullcontext() if is_own else random_state.seeded(seed)

    def hand_back(self) -> Any:
        """Give the caller's model, with the weights and the optimizer's state of the trained one.

        Where the caller gave a function it is the trained model itself, unless that is lost.
        """
        own = self._given
        if self._by_function:
            own = self._call() if self._remote else self._trained
        if own is not self._trained:
            copy(self._trained, own)
        return own

    def _call(self) -> Any:
        return self._checked(self._given(), "The function that fit was given returns")

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
        copy(model, made)
    return made


def copy(source: Any, target: Any) -> None:
    """Give a model the weights and the optimizer's state of another one."""
    target.set_weights(source.get_weights())
    if source.optimizer.built:
        if not target.optimizer.built:
            with target.distribute_strategy.scope():  # its variables lie beside the model's
                target.optimizer.build(target.trainable_variables)
        pairs = zip(source.optimizer.variables, target.optimizer.variables, strict=True)
        for variable, other in pairs:
            other.assign(tf.convert_to_tensor(variable).numpy())


def _described(make: Callable[[], Any], what: str) -> Any:
    try:
        return make()
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise errors.UserCodeError(
            f"fit needs another model like the given one, and Keras cannot make it from the "
            f"model's {what} ({' '.join(str(error).split())[:300]}): give fit a function that "
            "builds and compiles the model instead."
        ) from error
