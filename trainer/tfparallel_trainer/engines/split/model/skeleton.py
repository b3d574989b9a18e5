"""Builds the user's model without its weights, so that no process ever holds all of it."""

import contextlib
import dataclasses
import traceback
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.backend.common import global_state  # not in the public API

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract.job_file import Strategy
from tfparallel_trainer.engines.split.model import graph, recording, variable_identity
from tfparallel_trainer.objective import checks, replica

_WITHOUT_VALUES = "uninitialized_variables"
"""Keras' list of variables whose values the end of any later scope would create."""
_BY_VALUE = "while in a stateless scope"
_NO_VALUE = "'NoneType' object has no attribute"
"""What Python says when Keras assigns to a variable without a value."""
_REMEDY = (
    "leave out set_weights, load_weights and arguments like weights='imagenet' (weights=None), and "
    "name the file of the weights in trainer.initialWeights"
)


def build(module: user.Module, seed: int) -> Any:
    """Call the user's `build_model` so that it creates variables without values.

    A variable's `value` then is its initial value, computed each time it is read. If the function
    raises, or does something that needs weights, it is a UserCodeError.
    """
    keras.utils.set_random_seed(seed)
    scope = keras.StatelessScope(initialize_variables=False)
    with scope, _all_frames():
        try:
            model = module.build_model()
        except errors.UserCodeError as error:
            raise _explained(error) from error
        finally:
            global_state.set_global_attribute(_WITHOUT_VALUES, [])
    replica.forget_names()
    if not isinstance(model, keras.Model):
        raise errors.UserCodeError(
            f"build_model returns {type(model).__name__}: let it return a keras.Model.",
            function="build_model",
        )
    checks.refuse_phases(model, Strategy.MODEL_SPLIT)
    if model.compiled:
        raise _compiles(module.find_place("build_model"))
    assigned = [
        variable for variable in model.variables if scope.get_current_value(variable) is not None
    ]
    _check_adapted(module, model, {id(variable) for variable in assigned})
    if assigned:
        raise errors.UserCodeError(
            f"build_model assigns a value to {assigned[0].path}, which is lost because ModelSplit "
            f"builds the model without its weights: {_REMEDY}.",
            function="build_model",
        )
    return model


@contextlib.contextmanager
def _all_frames() -> Iterator[None]:
    """Keep Keras' own frames in errors, because they show what was being built."""
    is_filtered = keras.config.is_traceback_filtering_enabled()
    keras.config.disable_traceback_filtering()
    try:
        yield
    finally:
        if is_filtered:
            keras.config.enable_traceback_filtering()


def compile_model(module: user.Module, model: Any) -> None:
    """Call the user's `compile_model`, which must compile the model without using its weights."""
    try:
        with variable_identity.keys_of_skeletons():
            module.compile_model(model)
    except errors.UserCodeError as error:
        if _NO_VALUE not in str(error.__cause__):
            raise
        raise errors.UserCodeError(
            "compile_model assigns values to weights, but with ModelSplit the model is compiled "
            f"without its weights: {_REMEDY}.",
            error.trace,
            place=error.place,
        ) from error
    if not model.compiled or model.optimizer is None:
        raise errors.UserCodeError(
            "the model is not compiled: call model.compile(optimizer, loss) in compile_model.",
            function="compile_model",
        )


def _check_adapted(module: user.Module, model: Any, assigned: set[int]) -> None:
    """Refuse layers that were adapted, by the ids of assigned variables."""
    for layer in checks.layers(model):
        if isinstance(layer, keras.layers.Normalization) and any(
            id(weight) in assigned for weight in layer.weights
        ):
            raise errors.UserCodeError(
                f"the layer {layer.name} takes its mean and variance from adapt(), which is lost "
                "because ModelSplit builds the model without its weights. Create it with both, "
                "Normalization(mean=…, variance=…), or normalize in training_data.",
                function="build_model",
            )


def _explained(error: errors.UserCodeError) -> errors.UserCodeError:
    cause = error.__cause__
    if cause is not None and _is_loading(cause):
        return errors.UserCodeError(
            f"build_model loads weights ({' '.join(str(cause).split())[:200]}), but ModelSplit "
            f"builds the model without its weights: {_REMEDY}.",
            error.trace,
            place=error.place,
        )
    if not isinstance(cause, ValueError) or _BY_VALUE not in str(cause):
        return error
    if _is_compiling(cause):
        return _compiles(error.place)
    for layer in _selves(cause):
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            return errors.UserCodeError(
                f"The layer {layer.name} is stateful: its state belongs to places of a batch, "
                "which ModelSplit divides. Set stateful=False, or train in one process with the "
                "strategy MultiWorkerMirrored.",
                place=error.place,
            )
    return errors.UserCodeError(
        "build_model creates a variable from a value, but ModelSplit builds the model without its "
        "weights: give an initializer instead, as add_weight takes it.",
        error.trace,
        place=error.place,
    )


def _is_loading(error: BaseException) -> bool:
    """Whether a model of keras.applications was about to load weights."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(
        frame.f_globals.get("__name__", "").startswith("keras.src.applications")
        and frame.f_locals.get("weights") is not None
        for frame in frames
    )


def _is_compiling(error: BaseException) -> bool:
    """Whether an optimizer was being created, by the user or by a hidden frame of compile."""
    if any(
        isinstance(optimizer_candidate, keras.optimizers.Optimizer)
        for optimizer_candidate in _selves(error)
    ):
        return True
    lines = traceback.extract_tb(error.__traceback__)
    return any(".compile(" in (line.line or "") for line in lines)


def _selves(error: BaseException) -> list[Any]:
    """The objects whose methods are in an error's traceback."""
    return [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]


def _compiles(location: str) -> errors.UserCodeError:
    return errors.UserCodeError(
        "build_model compiles the model, but ModelSplit first builds it without its weights. Move "
        "the line that makes the optimizer and the line model.compile(…) into a function "
        "compile_model(model).",
        place=location,
    )


def recorded(module: user.Module, skeleton: Any) -> graph.Graph:
    """Return the graph of an uncompiled model, with the user's shardings of its layers."""
    overrides: Any = {}
    if module.has("layer_shardings"):
        overrides = module.call_with("layer_shardings", skeleton)
    is_named = isinstance(overrides, dict) and all(
        isinstance(text, str) for pair in overrides.items() for text in pair
    )
    if not is_named:
        raise errors.UserCodeError(
            f"layer_shardings returned {overrides!r}: return a dictionary of shardings by the "
            "names of layers, such as {'dense': 'column'}.",
            function="layer_shardings",
        )
    return dataclasses.replace(recording.record(skeleton), sharding_overrides=overrides)
