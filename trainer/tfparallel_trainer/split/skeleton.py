"""Builds the user's model without its weights, so that no process ever holds all of it."""

import traceback
from typing import Any

import keras

from tfparallel_trainer import errors, user

_BY_VALUE = "while in a stateless scope"


def build(module: user.Module, seed: int) -> Any:
    """Call the user's `build_model` so that it creates variables without values.

    A variable's `value` then is its initial value, computed anew each time that one asks for it.

    Args:
        module: the user's functions.
        seed: seed of the initial weights.

    Raises:
        UserCodeError: the function raises, or does what is lost or impossible without weights.
    """
    keras.utils.set_random_seed(seed)
    scope = keras.StatelessScope(initialize_variables=False)
    with scope:
        try:
            model = module.build_model()
        except errors.UserCodeError as error:
            raise _explained(module, error) from error
    if not isinstance(model, keras.Model):
        raise errors.UserCodeError(
            f"build_model returns {type(model).__name__}: let it return a keras.Model."
        )
    if model.compiled:
        raise _compiles(module)
    for variable in model.variables:
        if scope.get_current_value(variable) is not None:
            raise errors.UserCodeError(
                f"{module.path}: build_model assigns a value to {variable.path}, which is lost "
                "because ModelSplit builds the model without its weights: name the file of the "
                "weights in trainer.initialWeights instead."
            )
    return model


def _explained(module: user.Module, error: errors.UserCodeError) -> errors.UserCodeError:
    cause = error.__cause__
    if not isinstance(cause, ValueError) or _BY_VALUE not in str(cause):
        return error
    if _is_compiling(cause):
        return _compiles(module)
    return errors.UserCodeError(
        f"{module.path}: build_model creates a variable from a value, but ModelSplit builds the "
        "model without its weights: give an initializer instead, as add_weight takes it.",
        error.trace,
    )


def _is_compiling(error: BaseException) -> bool:
    """Whether an optimizer was being made, by the user or by compile (whose frames Keras hides)."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if isinstance(frame.f_locals.get("self"), keras.optimizers.Optimizer):
            return True
    lines = traceback.extract_tb(error.__traceback__)
    return any(".compile(" in (line.line or "") for line in lines)


def _compiles(module: user.Module) -> errors.UserCodeError:
    return errors.UserCodeError(
        f"{module.path}: build_model compiles the model, but ModelSplit first builds it without "
        "its weights: move the line that makes the optimizer and the line model.compile(…) into "
        "a function compile_model(model)."
    )
