"""Explains what ends a script: Keras' `fit` in several processes, and a folder that is read-only.

Keras 3's `fit` raises in each process, whatever the model and the data: under
MultiWorkerMirroredStrategy a ValueError about PerReplica values, under ParameterServerStrategy one
about ClusterCoordinator.create_per_worker_dataset. So the words do not count, but that the error
went through such a call on a model that belongs to such a strategy.
"""

import dataclasses
import linecache
import pathlib
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.contract import documentation, environment, separate_training
from tfparallel_trainer.reporting import console

_TOGETHER, _SERVERS = "MultiWorkerMirroredStrategy", "ParameterServerStrategy"
_CALLS = {  # what fails under each
    _TOGETHER: ("fit", "evaluate", "train_on_batch", "test_on_batch"),
    _SERVERS: ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class UnsupportedCall:
    """A call of a Keras model that cannot work."""

    method: str
    strategy: str
    """TensorFlow's public name; empty where the model belongs to one process."""
    file: str
    line: int
    """The position of the call in the script."""

    @property
    def place(self) -> str:
        """Where, for people."""
        return f"{pathlib.Path(self.file).name}, line {self.line}"


def report(error: BaseException, env: Mapping[str, str]) -> bool:
    """Explain the error, if it is of a known kind; return whether it is."""
    try:
        cluster = tasks.parse(env.get(environment.TF_CONFIG))
    except errors.BadConfigurationError:
        return False
    call = None if cluster.alone else find(error)
    sentence = explain(call) if call is not None else explain_read_only(error)
    if sentence:
        out = console.Console(cluster.task.name, env.get(environment.FAILURE_FILE, ""))
        out.fail(sentence)
    return bool(sentence)


def find(error: BaseException) -> UnsupportedCall | None:
    """The call of a Keras model through which an error passed; None: there is none."""
    caller: tuple[str, int] | None = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__") or ""
        if not module.startswith("keras."):
            caller = frame.f_code.co_filename, line
            continue
        strategy = next(filter(None, map(strategy_of, _values(frame))), "")
        method = _method(frame, _CALLS.get(strategy, ()))
        return UnsupportedCall(method, strategy, *caller) if caller is not None and method else None
    return None


def explain(call: UnsupportedCall) -> str:
    """Say what to change."""
    caller = call.place
    pointer = f"See {documentation.reference(documentation.Section.KERAS_FIT)}."
    text = (
        f"Keras 3 cannot {call.method} under {call.strategy} in several processes: it fails in "
        f"Keras itself ({caller}), whatever the model and the data."
        if call.strategy
        else f"Keras 3 cannot {call.method} in several processes ({caller}): each would train a "
        "model of its own."
    )
    if call.method != "fit":
        return (
            f"{text} tfparallel_trainer.fit can train, and evaluate the validation_data that it is "
            f"given; its model predicts without the strategy. {pointer}"
        )
    if call.strategy == _SERVERS:
        return (
            f"{text} tfparallel_trainer.fit can, with the same arguments: let every process call "
            "it, and remove the strategy and the lines that start a tf.distribute.Server. "
            f"{pointer}"
        )
    return (
        f"{text} tfparallel_trainer.fit can, with the same arguments. Import tfparallel_trainer, "
        f"and write {find_replacement(call)!r} there"
        f"{', after strategy.scope()' if call.strategy else ''}. {pointer}"
    )


def explain_read_only(error: BaseException) -> str:
    """Say where a script can write, if it tried to write into a read-only folder; empty: it did
    not."""
    if not errors.is_read_only(error):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    folder = pathlib.Path.cwd()
    of_script = [frame for frame in frames if pathlib.Path(frame.filename).is_relative_to(folder)]
    [frame] = (of_script or frames)[-1:]
    return (
        f"{pathlib.Path(frame.filename).name}, line {frame.lineno}: {type(error).__name__}: "
        f"{error}. In a cluster, the folder of the script is read-only: write below the mountPath "
        "of a claim."
    )


def explain_separate(evidence: separate_training.SeparateTraining, replacement: str) -> str:
    """Say why a replica ends that would train a separate model, and what to change."""
    where = documentation.reference(documentation.Section.SEPARATE_TRAINING)
    return (
        f"{evidence.cause}. {evidence.describe_remedy(replacement)}; if each replica is to train "
        f"its own model, set spec.onSeparateTraining to Continue (see {where})."
    )


def find_replacement(call: UnsupportedCall) -> str:
    """Give the line of a call of Keras' fit as it calls `tfparallel_trainer.fit`."""
    line = linecache.getline(call.file, call.line).strip()
    changed = re.sub(r"(?<![\w.])([\w.]+)\.fit\(", r"tfparallel_trainer.fit(\1, ", line, count=1)
    return "tfparallel_trainer.fit(model, …)" if changed == line else changed


def _method(frame: FrameType, calls: Sequence[str]) -> str:
    """Which of these methods a frame of Keras is, or wraps; empty for others."""
    names = [frame.f_code.co_name]
    names += [getattr(value, "__name__", "") for value in frame.f_locals.values()]
    return next((name for name in names if name in calls), "")


def strategy_of(value: Any) -> str:
    """The strategy of several processes that a Keras model belongs to; empty for all else."""
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow and isinstance(value, sys.modules["keras"].Model):
        strategy = value.distribute_strategy
        for name in (_TOGETHER, _SERVERS):
            if isinstance(strategy, getattr(tensorflow.distribute, name)):
                return name
    return ""


def _values(frame: FrameType) -> Iterator[Any]:
    for value in frame.f_locals.values():
        yield value
        if isinstance(value, tuple):
            yield from value
