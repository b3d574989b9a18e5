"""Keras' callbacks, told of the moments of training in Keras' order.

They run on the chief alone, with the model of its first device. Where no device has the model, a
stand-in takes its place. What they decide (to stop, another learning rate, other weights) is on all
ranks before training continues. The logs that they leave are in the history of every process.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer import errors, user
from tfparallel_trainer.data import order
from tfparallel_trainer.engines import setup
from tfparallel_trainer.keras_fit import (
    callback_state,
    model_access,
    supported_arguments,
    trainability,
)
from tfparallel_trainer.loop import observer
from tfparallel_trainer.process_settings import Settings

BAR = 1
_OLD_NAMES = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}
_OF_BATCHES = tuple(_OLD_NAMES)
_MOMENTS = (
    *_OF_BATCHES,
    "on_epoch_begin",
    "on_test_begin",
    "on_test_batch_begin",
    "on_test_batch_end",
    "on_test_end",
    "on_train_end",
)
"""When processes talk to each other only if a callback may decide something."""

_LOOK_ONLY = (
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
"""Callbacks that decide nothing; their subclasses may."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallbackSchedule:
    """The facts about a run that Keras passes to callbacks, and when it evaluates."""

    callbacks: Sequence[Any]
    epochs: int | None
    """Number of epochs; None: the run counts steps."""
    steps: int | None
    """Number of batches in an epoch, if known."""
    validates: bool
    verbose: int = 0
    """0 is silent, `BAR` a bar that moves, and 2 a line for each epoch."""
    validation_freq: int | Sequence[int] = 1


def checked(callbacks: Any, strategy: str) -> list[Any]:
    """The callbacks of a list; a UserCodeError for others, and those that the strategy refuses."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    flat_callbacks = keras.tree.flatten(callbacks) if callbacks else []
    for callback in flat_callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise errors.UserCodeError(
                f"callbacks holds {callback!r}: give objects of keras.callbacks.Callback."
            )
        for row in supported_arguments.CALLBACKS:
            refused = row.verdicts[strategy] is supported_arguments.Verdict.REFUSED
            if refused and isinstance(callback, getattr(keras.callbacks, row.name)):
                raise errors.UserCodeError(
                    f"The callback {row.name} cannot be honoured with {strategy}: {row.note}."
                )
    return flat_callbacks


def of_module(
    settings: Settings,
    module: user.Module,
    engine_setup: setup.EngineSetup,
) -> observer.Observer:
    """Build the observer that calls the callbacks of a job's module."""
    if not module.has("callbacks"):
        return observer.Observer()
    if settings.under_strategy:
        raise errors.UserCodeError(
            f"callbacks is defined, and strategy {settings.job.strategy} has none: remove the "
            "function, or use Mirrored, MultiWorkerMirrored, ModelSplit or ParameterServer.",
            function="callbacks",
        )
    spec = settings.job.trainer
    context = setup.user_context(settings, engine_setup.start.epoch)
    with module.concerns("callbacks"):
        callbacks = checked(module.call_with("callbacks", context), settings.job.strategy)
    if any(isinstance(callback, keras.callbacks.SwapEMAWeights) for callback in callbacks):
        raise errors.UserCodeError(
            "callbacks gives SwapEMAWeights, and averages of the weights are what is evaluated and "
            "exported in any case: remove it.",
            function="callbacks",
        )
    length = engine_setup.training.examples
    plan = CallbackSchedule(
        callbacks=callbacks,
        epochs=spec.epochs,
        steps=None if length is None else order.steps(length, spec.global_batch_size),
        validates=engine_setup.evaluation is not None,
    )
    build = engine_setup.build_model_access
    replicas = engine_setup.replicas
    access = build(callbacks) if build else model_access.ReplicatedModelAccess(replicas)
    guard = functools.partial(user.guard, module.path)
    return Callbacks(plan, access, lambda: access.model, engine_setup.start.observer, guard)


class Callbacks(observer.Observer):
    """Calls callbacks at the moments of training. Every process has one."""

    acts = True

    def __init__(
        self,
        plan: CallbackSchedule,
        over: model_access.ModelAccess,
        hand_back: Callable[[], Any],
        memory: str = "",
        guard: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Take a plan that is the same on all processes, and what callbacks see as the model.

        `hand_back` gives the caller's model the trained weights, and gives that model. `memory` is
        of the run that this one resumes. `guard` translates what callbacks raise, and says
        what was called; absent: the caller of fit gets it, as from Keras.
        """
        self._guard = guard
        self._hand_back = hand_back
        self._plan = plan
        self._reach = over
        self._model = over.model
        self._trainability = trainability.Trainability(over.model)
        self._observed = _Seen()
        self.history = keras.callbacks.History()
        self._verbose = plan.verbose if over.leads else 0
        self._bar: Any = None
        self._shown = 0
        """Number of batches of the epoch that the bar shows."""
        listeners = self._listed()
        self._calls = {
            moment: [
                getattr(callback, moment) for callback in listeners if _takes(callback, moment)
            ]
            for moment in ("on_train_begin", "on_epoch_end", *_MOMENTS)
        }
        """By moment, those of the callbacks that override it."""
        if over.leads:
            self._calls["on_train_begin"].append(lambda _: self._remember(memory))
        self._trained = False
        self._decisive: frozenset[str] = frozenset()

    @property
    def changes(self) -> int:
        return self._reach.changes

    def _listed(self) -> list[Any]:
        """The chief's callbacks, then the history, all with their model."""
        plan, over = self._plan, self._reach
        pairs = (
            [(callback, over.shown_to(callback)) for callback in plan.callbacks]
            if over.leads
            else []
        )
        pairs += [(self.history, self._model), (self._observed, self._model)]
        params = {"verbose": plan.verbose, "epochs": plan.epochs, "steps": plan.steps}
        with self._trainability.of_callbacks():
            for callback, model in pairs:
                callback.set_model(model)
                callback.set_params(params)
        self._model.history = self.history
        return [callback for callback, _ in pairs]

    def _call(self, moment: str, *facts: Any) -> None:
        with self._trainability.of_callbacks():
            for call in self._calls[moment]:
                owner = type(getattr(call, "__self__", self)).__name__
                with self._guard(f"{moment} of the callback {owner} raised"):
                    call(*facts)

    @property
    def memory(self) -> str:
        if not self._reach.leads:
            return ""
        written = self._reach.dump_closures()
        return callback_state.dump(self._plan.callbacks, stopped=self.stop, closures=written)

    def _remember(self, memory: str) -> None:
        if callback_state.load(memory, self._plan.callbacks):
            self._model.stop_training = True
        self._reach.restore_closures(callback_state.load_closures(memory))

    def evaluates_after(self, epoch: int) -> bool:
        plan, number = self._plan, epoch + 1
        if not plan.validates:
            return False
        if isinstance(plan.validation_freq, int):
            return number % plan.validation_freq == 0
        return number in plan.validation_freq

    def training_begins(self) -> None:
        """Call them. If a script has other callbacks in a process, those of the chief count."""
        self._model.stop_training = False
        callbacks = self._plan.callbacks
        chiefs = self._act(
            "on_train_begin",
            {},
            decisive=[
                moment
                for moment in _MOMENTS
                if any(_decides(callback, moment) for callback in callbacks)
            ],
            each_batch=any(
                _takes(callback, moment) for callback in callbacks for moment in _OF_BATCHES
            ),
            takes_non_finite=any(
                isinstance(callback, keras.callbacks.TerminateOnNaN) for callback in callbacks
            ),
        )
        self._decisive = frozenset(chiefs["decisive"])
        self.each_batch = chiefs["each_batch"]
        self.takes_non_finite = chiefs["takes_non_finite"]

    def epoch_begins(self, epoch: int) -> None:
        self._shown = 0
        self._bar = keras.utils.Progbar(self._plan.steps, verbose=self._verbose, unit_name="step")
        if self._verbose:
            print(f"Epoch {epoch + 1}/{self._plan.epochs}", flush=True)
        self._pass("on_epoch_begin", epoch, {})

    def batch_begins(self, batch: int) -> None:
        self._pass("on_train_batch_begin", batch, {})

    def batch_ends(self, batch: int, logs: observer.Logs) -> None:
        self._pass("on_train_batch_end", batch, _sorted(logs))

    def reported(self, batch: int, logs: observer.Logs) -> None:
        self._shown = batch
        if self._verbose == BAR and batch != self._plan.steps:
            self._bar.update(batch, sorted(logs.items()), finalize=False)

    def evaluation_begins(self) -> None:
        self._pass("on_test_begin", {})

    def evaluation_batch_begins(self, batch: int) -> None:
        """Call them. Each process has its own part of the batch."""
        self._pass("on_test_batch_begin", batch, {})

    def evaluation_batch_ends(self, batch: int) -> None:
        """Call them. Loss and metrics exist only at the end."""
        self._pass("on_test_batch_end", batch, {})

    def evaluation_ends(self, logs: observer.Logs) -> None:
        self._pass("on_test_end", _sorted(logs))

    def epoch_ends(self, epoch: int, logs: observer.Logs) -> None:
        self._trained = True
        self._act("on_epoch_end", epoch, _sorted(logs))
        if self._verbose:
            self._bar.target = self._shown
            self._bar.update(self._shown, sorted(self._observed.logs.items()), finalize=True)

    def training_ends(self) -> None:
        """Set the weights as Keras' fit leaves them, and call the callbacks."""
        self._reach.finish(trained=self._trained)
        self._pass("on_train_end", self._observed.logs)
        self._trainability.adopt()
        model = self._hand_back()
        self.history.set_model(model)
        model.history = self.history

    def _pass(self, moment: str, *facts: Any) -> None:
        """Call them at a moment at which most of them decide nothing."""
        if moment in self._decisive:
            self._act(moment, *facts)
        else:
            self._call(moment, *facts)

    def _act(self, moment: str, *facts: Any, **more: Any) -> dict[str, Any]:
        """Let the chief's callbacks act, and return what it announces to all, `more` among it."""

        def answer() -> bytes:
            self._call(moment, *facts)
            stop = bool(self._model.stop_training)
            problem = "" if moment in _OF_BATCHES else self._trainability.find_problem()
            news = {"stop": stop, "problem": problem, "logs": self._observed.logs, **more}
            return json.dumps(news).encode()

        announced: dict[str, Any] = json.loads(self._reach.after(answer))
        if announced["problem"]:
            raise errors.UserCodeError(announced["problem"]).on_every_process()
        self.stop = announced["stop"]
        if not self._reach.leads:
            left = announced["logs"] if moment == "on_epoch_end" else None
            self._call(moment, *(facts if left is None else (facts[0], left)))
        return announced


class _Seen(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """The last of the list: what the others left in the logs of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: observer.Logs = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        numbers = {name: np.asarray(value) for name, value in (logs or {}).items()}
        self.logs = {
            name: float(value)
            for name, value in numbers.items()
            if value.ndim == 0 and np.issubdtype(value.dtype, np.number)
        }


def _sorted(logs: observer.Logs) -> observer.Logs:
    """In Keras' order."""
    return dict(sorted(logs.items()))


def _decides(callback: Any, moment: str) -> bool:
    """Whether a callback may stop training, or change variables, at a moment."""
    return type(callback) not in _LOOK_ONLY and _takes(callback, moment)


def _takes(callback: Any, moment: str) -> bool:
    """Whether a callback overrides the method of a moment."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_freq == "epoch":
        return moment not in _OF_BATCHES
    return any(
        getattr(getattr(callback, name), "__func__", None)
        is not getattr(keras.callbacks.Callback, name)
        for name in (moment, _OLD_NAMES.get(moment, moment))
    )
