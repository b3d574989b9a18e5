"""Refuses models that no engine can train; the messages say what to change."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract import documentation

_OVERRIDES = {
    "train_step": "put what it computes into a keras.losses.Loss and the layers, or define "
    "training_phases",
    "test_step": "put what it computes into metrics",
    "compute_loss": "pass a keras.losses.Loss to model.compile instead",
    "compute_metrics": "pass keras.metrics.Metric objects to model.compile instead",
}


_DTYPES = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex64"),
    }
)
"""The types of variables that processes share and checkpoints keep."""

HOOK = "training_phases"
"""The method by which a model defines its training step."""


def check(model: Any) -> None:
    """Refuse (UserCodeError) what is not a compiled Keras model, or needs what no engine offers."""
    if not isinstance(model, keras.Model):
        raise errors.UserCodeError(
            f"build_model returns {type(model).__name__}: let it return a keras.Model.",
            function="build_model",
        )
    if not model.compiled or model.optimizer is None:
        raise errors.UserCodeError(
            f"The model {model.name} is not compiled: call model.compile(optimizer, loss) in "
            "compile_model.",
            function="compile_model",
        )
    if keras.distribution.distribution() is not None:
        raise errors.UserCodeError(
            "keras.distribution is set, which Keras does not follow with TensorFlow: remove "
            "set_distribution, and choose spec.strategy and spec.mesh instead.",
            function="build_model",
        )
    for method, remedy in () if defines_phases(model) else _OVERRIDES.items():
        if getattr(type(model), method) is not getattr(keras.Model, method):
            raise errors.UserCodeError(
                f"{user.describe(model)} overrides {method}, which cannot be divided over ranks: "
                f"{remedy} (see {documentation.reference(documentation.Section.OWN_STEPS)}).",
                function="build_model",
            )
    check_optimizer(model.optimizer)


def check_optimizer(optimizer: Any) -> None:
    """Refuse (UserCodeError) an optimizer that overrides `apply_gradients`."""
    kind = type(optimizer)
    if not kind.apply_gradients.__module__.startswith("keras."):
        raise errors.UserCodeError(
            f"The optimizer {user.describe(kind)} overrides apply_gradients, which takes gradients "
            "of the whole batch that no engine joins for it. Override "
            "apply(grads, trainable_variables) instead, which Keras calls with the same values.",
            function="compile_model",
        )


def check_variables(variables: Iterable[Any]) -> None:
    """Refuse (UserCodeError) variables of a type that processes cannot share."""
    for variable in variables:
        if variable.dtype not in _DTYPES:
            raise errors.UserCodeError(
                f"The variable {variable.path} has the dtype {variable.dtype}, which processes "
                "cannot share and checkpoints cannot keep. Give it a dtype of bool, integers, or "
                "floats of 16 bits or more, and keep texts in a layer such as StringLookup.",
                function="build_model",
            )


def defines_phases(model: Any) -> bool:
    """Whether a model defines its training step itself."""
    return callable(getattr(model, HOOK, None))


def refuse_phases(model: Any, strategy: str) -> None:
    """Refuse a model that defines its training step itself, which a strategy cannot run."""
    if defines_phases(model):
        section = documentation.reference(documentation.Section.OWN_STEPS)
        raise errors.UserCodeError(
            f"{user.describe(model)} defines {HOOK}, and strategy is {strategy}, which trains by "
            f"the compiled loss: set strategy to Mirrored or MultiWorkerMirrored (see {section}).",
            function="build_model",
        )


def layers(root: Any) -> Iterator[Any]:
    """All layers of a model, each once: the model itself first, then nested layers too."""
    visited: set[int] = set()
    pending = [root]
    while pending:
        layer = pending.pop()
        if id(layer) in visited:
            continue
        visited.add(id(layer))
        yield layer
        pending.extend(reversed(list(children(layer))))


def children(layer: Any) -> Iterator[Any]:
    """The direct sublayers of a layer: in `layers`, in attributes, lists or dictionaries."""
    for value in (list(getattr(layer, "layers", ())), *vars(layer).values()):
        several = value.values() if isinstance(value, dict) else value
        for item in several if isinstance(value, (list, tuple, dict)) else (value,):
            if isinstance(item, keras.layers.Layer):
                yield item


def runs_user_code(model: Any) -> bool:
    """Whether a model has layers that are not Keras' own, or that call the user's functions."""
    return defines_phases(model) or any(
        isinstance(layer, keras.layers.Lambda) or not type(layer).__module__.startswith("keras.")
        for layer in layers(model)
    )


def may_assign(model: Any) -> bool:
    """Whether the forward pass of a model may assign weights, but for BatchNormalization."""
    return runs_user_code(model) or any(
        isinstance(layer, keras.layers.SpectralNormalization) for layer in layers(model)
    )


def find_stateful(model: Any) -> Any:
    """Return the first layer that keeps its state between batches, or None."""
    recurrent = (layer for layer in layers(model) if isinstance(layer, keras.layers.RNN))
    return next((layer for layer in recurrent if layer.stateful), None)


def refuse_stateful(model: Any, reason: str) -> None:
    """Refuse (UserCodeError) a model with a state for each position in a batch."""
    if layer := find_stateful(model):
        raise errors.UserCodeError(
            f"The layer {layer.name} is stateful: what it keeps belongs to the places of a "
            f"batch, and {reason}. Train on one device, or leave out stateful=True.",
            function="build_model",
        )


def calling_layer() -> str:
    """Name the layer whose call is running, as the subject of a sentence."""
    frame = inspect.currentframe()
    while frame is not None:
        layer = frame.f_locals.get("self")
        if isinstance(layer, keras.layers.Layer):
            return f"The layer {layer.name}, {user.describe(layer)},"
        frame = frame.f_back
    return "A layer"


def advice(model: Any, ranks: int) -> list[str]:
    """Sentences about correct behaviour that may surprise if a batch is divided over ranks."""
    plain = [
        layer.name
        for layer in layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
    ]
    if not plain or ranks == 1:
        return []
    return [
        f"BatchNormalization ({', '.join(plain[:3])}{', …' if len(plain) > 3 else ''}) "
        "normalises by each replica's own part of the batch, and the chief's moving statistics "
        "are saved. synchronized=True normalises by the whole batch; GroupNormalization and "
        "LayerNormalization do not depend on the batch."
    ]
