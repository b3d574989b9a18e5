"""The state of callbacks over restarts: numbers, as JSON with the position of a checkpoint."""

import json
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np

_NONE: Mapping[str, Any] = MappingProxyType({})

_REMEMBERED = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_epoch", "stopped_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best",),
}
"""The attributes of Keras' own callbacks that change while they run."""


def dump(callbacks: Sequence[Any], *, stopped: bool, closures: Mapping[str, Any] = _NONE) -> str:
    """The state of callbacks, and whether one of them has stopped training.

    `closures` are the variables outside the model that callbacks have written.
    """
    states = [[type(callback).__name__, _state(callback)] for callback in callbacks]
    memory: dict[str, Any] = {"stopped": stopped, "callbacks": states}
    return json.dumps(memory | ({"closures": dict(closures)} if closures else {}), default=_number)


def load_closures(text: str) -> Mapping[str, Any]:
    """The variables that `dump` took."""
    closures: Mapping[str, Any] = json.loads(text or "{}").get("closures", {})
    return closures


def load(text: str, callbacks: Sequence[Any]) -> bool:
    """Give these callbacks the state that `dump` gave, if any; return whether one has stopped."""
    memory = json.loads(text or '{"stopped": false, "callbacks": []}')
    if [name for name, _ in memory["callbacks"]] != [
        type(callback).__name__ for callback in callbacks
    ]:
        return False
    for callback, (_, state) in zip(callbacks, memory["callbacks"], strict=True):
        _restore(callback, state)
    return bool(memory["stopped"])


def _state(callback: Any) -> Any:
    if hasattr(callback, "get_state"):
        return callback.get_state()
    return {name: getattr(callback, name) for name in _names(callback)}


def _restore(callback: Any, state: Any) -> None:
    if hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    for name in _names(callback):
        setattr(callback, name, state[name])
    if getattr(callback, "restore_best_weights", False):
        warnings.warn(
            f"{type(callback).__name__} restores the best weights since this restart: those of "
            "before are not kept. Let ModelCheckpoint(save_best_only=True) save them.",
            stacklevel=2,
        )


def _names(callback: Any) -> tuple[str, ...]:
    return tuple(
        name
        for kind, names in _REMEMBERED.items()
        if isinstance(callback, kind)
        for name in names
        if hasattr(callback, name)
    )


def _number(value: Any) -> Any:
    """A number of NumPy's, or of TensorFlow's, as one of Python's."""
    return np.asarray(value).item()
