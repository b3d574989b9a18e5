"""Which weights a run trains: those that were trainable when the model was compiled.

Keras' fit traces its step once, so `trainable` that a callback sets holds from the next compile on.
Here callbacks run on one process alone, so what they set must not reach that process' own traces.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from tfparallel_trainer.objective import checks

_AGAIN = "let the callback stop training, then compile the model and train again"


class Trainability:
    """Separates what callbacks set from what the run trains."""

    def __init__(self, model: Any) -> None:
        """Take the model that callbacks get, before they have it."""
        self._model = model
        self._layers = list(checks.layers(model))
        self._variables = list(getattr(model, "variables", ()))
        self._of_run = self._of_callbacks = self._read()
        self._compiled = self._read_compiled()
        self._train_function = getattr(model, "train_function", None)
        self._weights = self._identify_weights()

    @contextlib.contextmanager
    def of_callbacks(self) -> Iterator[None]:
        """Let the body see and set `trainable` as callbacks have, and the run keep its own."""
        self._write(self._of_callbacks)
        try:
            yield
        finally:
            before, self._of_callbacks = self._of_callbacks, self._read()
            self._write(self._of_run)
        if self._of_callbacks != before:
            warnings.warn(
                "A callback has set trainable. As in Keras' fit, this changes nothing before the "
                f"model is compiled again: {_AGAIN}.",
                stacklevel=2,
            )

    def find_problem(self) -> str:
        """Name the changes of callbacks that a run cannot apply; empty: none."""
        function = getattr(self._model, "train_function", None)
        is_retraced = function is not self._train_function
        self._train_function = function
        if self._read_compiled() != self._compiled:
            return f"A callback has compiled the model, and a run keeps its step: {_AGAIN}."
        if is_retraced and self._of_callbacks != self._of_run:
            return (
                "A callback has set trainable and made the training function again, and a run "
                f"keeps its step: {_AGAIN}."
            )
        if self._identify_weights() != self._weights:
            return (
                "A callback has changed which weights the model has, and a run keeps those that "
                f"it began with: {_AGAIN}."
            )
        return ""

    def adopt(self) -> None:
        """Leave the model as callbacks have set it, as Keras' fit does."""
        self._write(self._of_callbacks)

    def _read(self) -> list[bool]:
        return [
            *(layer._trainable for layer in self._layers),
            *(variable.trainable for variable in self._variables),
        ]

    def _write(self, flags: Sequence[bool]) -> None:
        if flags == self._read():
            return
        layers = len(self._layers)
        for layer, is_trainable in zip(self._layers, flags[:layers], strict=True):
            layer._trainable = is_trainable  # the property's setter would set what is below, too
        for variable, is_trainable in zip(self._variables, flags[layers:], strict=True):
            variable.trainable = is_trainable

    def _read_compiled(self) -> list[int]:
        return [id(getattr(self._model, name, None)) for name in ("optimizer", "_compile_loss")]

    def _identify_weights(self) -> list[int]:
        return [id(weight) for weight in getattr(self._model, "weights", ())]
