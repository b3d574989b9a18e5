"""What callbacks see as the model, which no process has in full if it is divided.

Callbacks read logs, and decide to stop or to change the learning rate. All ranks get their
decisions before training continues. A callback that would need the weights is refused by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.execution import ranks
from tfparallel_trainer.objective import tracing, writes

_END = b"\n"
"""Separates the two parts of a broadcast; JSON does not contain it."""
_INSTEAD = (
    "With strategy ModelSplit no process has the whole model: callbacks may read the logs, set "
    "model.stop_training and set model.optimizer.learning_rate, and trainer.checkpoint saves the "
    "weights"
)
_ON_OTHERS = {
    keras.callbacks.EarlyStopping: ("restore_best_weights",),
    keras.callbacks.TensorBoard: (
        *("write_graph", "histogram_freq"),
        *("write_images", "embeddings_freq"),
    ),
}
"""Arguments of Keras' own callbacks that need the model."""


class SplitModelAccess:
    """A `keras_fit.model_access.ModelAccess` over ranks that each have a part of the model."""

    def __init__(self, local_ranks: ranks.Ranks, callbacks: Sequence[Any]) -> None:
        """Take callbacks, or raise a UserCodeError for one that needs the model."""
        for callback in callbacks:
            _check(callback)
        self._together = local_ranks
        self._ranks = local_ranks.local
        self.changes = 0
        self._closures = self._ranks[0].head.closures
        self._places = {
            id(closure.value.handle): index for index, closure in enumerate(self._closures)
        }
        self._watch = writes.ChangeDetector(self._closures)
        self._written: set[int] = set()

    @property
    def leads(self) -> bool:
        """Whether this process has the first rank."""
        return self._together.leads

    @property
    def model(self) -> Any:
        """The head of the first rank of this process, which has the loss and metrics alone."""
        return self._ranks[0].head.model

    def shown_to(self, callback: Any) -> Any:
        """What a callback gets as its model."""
        return CallbackModel(
            self.model, self._ranks[0].optimizer.keras_optimizer, type(callback).__name__
        )

    def after(self, call: Callable[[], bytes]) -> bytes:
        """Copy the learning rate and the closures of losses from the call to all ranks."""
        content = b""
        if self.leads:
            with writes.noted(self._places) as noted:
                answer = call()
            places = self._watch.find_changed(noted)
            self._written |= places
            excess = tracing.describe_excess(self._closures, self._written)
            rate = self._ranks[0].optimizer.keras_optimizer.learning_rate
            news = {
                "rate": float(tf.convert_to_tensor(rate)),
                "closures": {} if excess else tracing.dump(self._closures, sorted(places)),
                "excess": excess,
            }
            content = json.dumps(news).encode() + _END + answer
        received, _, answer = self._together.broadcast(content).partition(_END)
        news = json.loads(received)
        if news["excess"]:
            raise errors.UserCodeError(news["excess"]).on_every_process()
        rate = news["rate"]
        for rank in self._ranks:
            learning_rate = rank.optimizer.keras_optimizer.learning_rate
            if (
                isinstance(learning_rate, keras.Variable)
                and float(tf.convert_to_tensor(learning_rate)) != rate
            ):
                learning_rate.assign(rate)
            tracing.restore(rank.head.closures, news["closures"])
        self.changes += bool(news["closures"])
        return answer

    def dump_closures(self) -> Mapping[str, Any]:
        """The variables outside the model that calls have written."""
        return tracing.dump(self._closures, sorted(self._written))

    def restore_closures(self, values: Mapping[str, Any]) -> None:
        """Assign them values, within a call."""
        tracing.restore(self._closures, values)

    def finish(self, *, trained: bool) -> None:
        """Do nothing: no callback sees weights, and the export always uses averages."""


class CallbackModel:
    """Replaces a model: it knows loss and metrics by name, and has no weights."""

    def __init__(self, head: Any, optimizer: Any, callback: str) -> None:
        """Take a head that has the compiled metrics, and the name of the callback."""
        shown = CallbackOptimizer(optimizer, callback)
        vars(self).update(_head=head, _callback=callback, optimizer=shown)

    def __getattr__(self, name: str) -> Any:
        if name in ("stop_training", "history", "name", "metrics", "metrics_names"):
            return getattr(self._head, name)
        if hasattr(keras.Model, name):
            raise _refusal(self._callback, f"uses model.{name}")
        raise AttributeError(f"a divided model has no {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("stop_training", "history"):
            raise _refusal(self._callback, f"sets model.{name}")
        setattr(self._head, name, value)


class CallbackOptimizer:
    """Replaces the optimizer, whose state for other ranks' weights is not in this process."""

    def __init__(self, optimizer: Any, callback: str) -> None:
        vars(self).update(_optimizer=optimizer, _callback=callback)

    @property  # type: ignore[misc]  # as a proxy does, so that isinstance answers of the optimizer
    def __class__(self) -> Any:
        return type(self._optimizer)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._optimizer, name)
        if name == "iterations":
            return tf.convert_to_tensor(value)
        if name == "inner_optimizer":
            return CallbackOptimizer(value, self._callback)
        if name in ("learning_rate", "get_config") or isinstance(value, int | float | str | None):
            return value
        raise _refusal(self._callback, f"uses model.optimizer.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "learning_rate" or callable(value):
            raise _refusal(self._callback, f"sets model.optimizer.{name} to {value!r}")
        if not isinstance(self._optimizer.learning_rate, keras.Variable):
            raise errors.UserCodeError(
                f"The callback {self._callback} sets the learning rate, which the optimizer takes "
                "from a schedule: compile the model with a number, or leave the callback out."
            )
        self._optimizer.learning_rate = value


def _check(callback: Any) -> None:
    for kind, names in _ON_OTHERS.items():
        for name in names:
            if isinstance(callback, kind) and (value := getattr(callback, name)):
                has = f"has {name}={value}: give {name}={type(value)()}"
                raise _refusal(type(callback).__name__, has)


def _refusal(callback: str, does: str) -> errors.UserCodeError:
    return errors.UserCodeError(f"The callback {callback} {does}. {_INSTEAD}.")
