"""Reports that a replica trains a separate model, if its first step shows that.

It checks the active strategy, the optimizer's strategy, and the devices of the process. It knows by
name the libraries that exchange gradients or trials over their own connections. If a process has
joined its peers, its loop may use collectives.
"""

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tfparallel_trainer import errors, process_settings, tasks
from tfparallel_trainer.contract import environment, exits, limits, progress, separate_training
from tfparallel_trainer.reporting import console
from tfparallel_trainer.reporting import progress_pusher as reporting
from tfparallel_trainer.scripts import explanation

_EXCHANGING = ("horovod", "byteps", "mpi4py", "bluefog", "ray", "grpc", "zmq")
"""Packages by which processes exchange results."""

_SEARCHING = ("keras_tuner", "kerastuner", "optuna", "hyperopt")
"""Packages that train one model in each replica on purpose."""

_OF_ONE_PROCESS = (
    *("_DefaultDistributionStrategy", "OneDeviceStrategy"),
    *("MirroredStrategy", "CentralStorageStrategy"),
)
"""TensorFlow's strategies that reach no other process; the first one is active without any."""

_LIBRARIES = ("keras", "tensorflow", "tf_keras", "tfparallel_trainer", "threading")
_METHODS = ("fit", "train_on_batch")
_GENERATED = "__autograph_generated_file"


def look(optimizer: Any) -> None:
    """Check a step that is about to update weights, and end the process if its job says so."""
    evidence = find(optimizer)
    if evidence is None:
        return
    separate, call = evidence
    out = console.Console(separate.replica, os.environ.get(environment.FAILURE_FILE, ""))
    if os.environ[environment.ON_SEPARATE_TRAINING] == separate_training.OnSeparateTraining.STOP:
        out.fail(explanation.explain_separate(separate, call))
        raise SystemExit(int(exits.Exit.USER_ERROR))
    out.say(f"warning: {separate.cause}. {separate.describe_remedy(call)}.")
    pusher = reporting.Pusher(process_settings.progress_target(os.environ), out.say)
    pusher.put(progress.Report(step=0, separate_training=separate))
    atexit.register(pusher.close)


def find(optimizer: Any) -> tuple[separate_training.SeparateTraining, str] | None:
    """Return the evidence of a step, and the call of `tfparallel_trainer.fit` that replaces it.

    None: the replica may train together with others, or has no peers.
    """
    try:
        cluster = tasks.parse(os.environ.get(environment.TF_CONFIG))
    except errors.BadConfigurationError:
        return None
    training = cluster.with_role("chief", "worker")
    if cluster.task not in training or len(training) == 1:
        return None
    if _runs_elsewhere() or not sys.modules.keys().isdisjoint((*_EXCHANGING, *_SEARCHING)):
        return None
    method, file, line = _place()
    if _trains_together(optimizer) or (not method and _has_joined()):
        return None
    call = explanation.UnsupportedCall(method, "", file, line)
    separate = separate_training.SeparateTraining(
        replica=cluster.task.name,
        peers=len(training) - 1,
        method=method,
        place=limits.printable(call.place, limits.MAX_PLACE_LETTERS),
    )
    return separate, explanation.find_replacement(call) if method == "fit" else ""


def _runs_elsewhere() -> bool:
    """Whether Keras computes with JAX or PyTorch."""
    keras: Any = sys.modules.get("keras")
    return keras is not None and keras.backend.backend() != "tensorflow"


def _trains_together(optimizer: Any) -> bool:
    """Whether the active strategy may reach other processes."""
    current = _tensorflow().distribute.get_strategy()
    strategies = current, getattr(optimizer, "_distribution_strategy", None) or current
    return any(type(strategy).__name__ not in _OF_ONE_PROCESS for strategy in strategies)


def _has_joined() -> bool:
    """Whether this process is part of a cluster of TensorFlow's."""
    devices = _tensorflow().config.list_logical_devices()
    return any("/job:" in device.name for device in devices)


def _tensorflow() -> Any:
    return sys.modules["tensorflow"]


def _place() -> tuple[str, str, int]:
    """Return the method of Keras that trains, if any, and the line of the script that trains."""
    frames = list(_frames())
    calls = [index for index, frame in enumerate(frames) if _is_method(frame)]
    outer = frames[calls[-1] :] if calls else frames
    line = next(filter(_is_of_script, outer), frames[-1])
    method = outer[0].f_code.co_name if calls else ""
    return method, line.f_code.co_filename, line.f_lineno


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread and, as strategies use threads, those of the main one."""
    others = sys._current_frames()
    others.pop(threading.get_ident(), None)
    for frame in (sys._getframe(), others.get(threading.main_thread().ident or 0)):
        while frame is not None:
            yield frame
            frame = frame.f_back


def _is_method(frame: FrameType) -> bool:
    return _library(frame) in ("keras", "tf_keras") and frame.f_code.co_name in _METHODS


def _is_of_script(frame: FrameType) -> bool:
    return _library(frame) not in _LIBRARIES and _GENERATED not in frame.f_code.co_filename


def _library(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "").partition(".")[0]
