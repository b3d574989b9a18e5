"""`fit` and `start`: what a script calls."""

import functools
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.comms import tasks
from tfparallel_trainer.keras_fit import inputs, session, surroundings
from tfparallel_trainer.runtime.reporting import console
from tfparallel_trainer.scripts import explanation

_WAIT_SECONDS = 600
_STEP_SECONDS = 1800


def start(start_timeout_seconds: int = _WAIT_SECONDS) -> None:
    """Join the peers that TF_CONFIG names; call it before anything uses TensorFlow.

    Only scripts need it that run on several processes and build their model before `fit`. Keras'
    own fit is refused from then on: each process would train a model of its own.

    Raises:
        TrainerError: the peers do not come, or TensorFlow was used before.
    """
    if surroundings.in_job():
        surroundings.exit_by_contract()
    cluster = surroundings.described()
    if cluster.alone:
        return
    _refuse()
    if cluster.of(tasks.SERVER):
        return
    surroundings.join(cluster, start_timeout_seconds, console.Console(cluster.task.name).say)


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    seed: int = 0,
    output_dir: str | pathlib.Path | None = None,
    save_every_steps: int | None = None,
    save_every_minutes: int | None = None,
    keep: int = 3,
    on_non_finite_loss: str = "Stop",
    max_staleness: int | None = None,
    start_timeout_seconds: int = _WAIT_SECONDS,
    step_timeout_seconds: int = _STEP_SECONDS,
) -> Any:
    """Train a model on all devices and processes there are; else as `keras.Model.fit`.

    Args:
        model: a compiled model, or a function that returns one.
        x, y and the others up to validation_freq: as in Keras; batch_size is that of all replicas
            together.
        seed: of the order of examples, and of the model that a function builds.
        output_dir: a folder for checkpoints and logs, the same for all processes; a run that is
            started again goes on from there. None: nothing is written.
        save_every_steps, save_every_minutes, keep: when to save besides each epoch's end, and how
            many checkpoints stay.
        on_non_finite_loss: "Stop" raises, "Continue" leaves the step's update out.
        max_staleness: with parameter servers, how old a gradient may be.
        start_timeout_seconds: how long peers are waited for.
        step_timeout_seconds: how long a step may take, or another part of the run.

    Returns:
        The `keras.callbacks.History`, on every process that trains.

    Raises:
        TrainerError: training could not begin or ended early; knows its exit code.
    """
    return session.Session(inputs.Arguments(**locals())).to_end()


def _refuse() -> None:
    """Let Keras' fit raise from now on, and say what to change.

    In a script of several processes each would train a model of its own, and all would seem well.
    Under a strategy of the script's it fails.
    """
    keras.Model.fit = _refused


@functools.wraps(keras.Model.fit)
def _refused(model: Any, *_: Any, **__: Any) -> Any:
    caller = sys._getframe(1)
    strategy = explanation.strategy_of(model)
    call = explanation.Call("fit", strategy, caller.f_code.co_filename, caller.f_lineno)
    raise errors.UserCodeError(explanation.explain(call))
