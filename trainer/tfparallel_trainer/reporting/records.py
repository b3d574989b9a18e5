"""Records of a run: JSON lines for machines and TensorBoard's event files.

The train log tells how an epoch goes, about once a second. The step log has a line for each step,
for those who compare runs. Its lines on epochs and evaluations let speed be told without them.
"""

import contextlib
import datetime
import errno
import json
import math
import pathlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.storage import bucket, directory, durable

_TAIL_BYTES = 65_536
"""Bytes at the end of a log that are read for the last step: some hundred lines."""


class RunRecords:
    """Writes what happens in a run; only chief and evaluator have one. Later attempts append."""

    def __init__(
        self, output_dir: pathlib.Path, results: directory.Directory, log: str = outputs.TRAIN_LOG
    ) -> None:
        """Open the log of a run, with what earlier attempts wrote; `results` keeps copies."""
        self._copies = bucket.Mirror(output_dir, results)
        with _storing():
            self._copies.restore([log, outputs.STEP_LOG])
        path = output_dir / log
        self.recorded_step = _find_last_step(path)
        """The last step that earlier attempts have recorded."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lines = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            raise errors.BadConfigurationError(
                f"The output directory cannot be written to: {error}."
            ) from error
        self._folder = output_dir / outputs.TENSORBOARD
        self._writers: dict[str, Any] = {}
        self._changing = threading.Lock()

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Write a line: what happened, at which step, and facts about it; from any thread."""
        with self._changing:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
            record = {"time": now, "event": kind, "step": step, **facts}
            self._lines.write(json.dumps(record) + "\n")

    def metrics(self, kind: str, step: int, values: dict[str, float], **facts: Any) -> None:
        """Write metrics as a line and for TensorBoard; `kind` is train or evaluation."""
        numbers = {name: outputs.number(value) for name, value in values.items()}
        self.event(kind, step, **facts, metrics=numbers)
        if kind not in self._writers:
            self._writers[kind] = tf.summary.create_file_writer(str(self._folder / kind))
        with self._writers[kind].as_default(), tf.device("CPU:0"):
            for name, value in values.items():
                # As a float64: a Python float beyond a float32 is an error, not infinite.
                tf.summary.scalar(name, tf.constant(value, tf.float64), step=step)

    def flush(self) -> None:
        """Let readers see everything that is written, copies too; a StorageError if that fails."""
        for writer in self._writers.values():
            writer.flush()
        with _storing():
            self._copies.upload()

    def close(self) -> None:
        """Bring everything to the disk; copies are as new as the storage allows."""
        with contextlib.suppress(errors.StorageError):
            self.flush()
        for writer in self._writers.values():
            writer.close()
        self._lines.close()
        with contextlib.suppress(OSError):
            durable.sync(self._folder.parent)


def _find_last_step(path: pathlib.Path) -> int:
    """Return the last step of a log, as far as its last lines can be read; 0: they have none."""
    steps = [0]
    with contextlib.suppress(OSError), path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        for line in log:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                steps.append(int(json.loads(line)["step"]))
    return max(steps)


class StepLog:
    """Writes a line for each step."""

    def __init__(self, output_dir: pathlib.Path, weights: Sequence[Any]) -> None:
        """Begin with a line on the weights that are trained."""
        path = output_dir / outputs.STEP_LOG
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = path.open("a", encoding="utf-8", buffering=1)
        size = sum(weight.value.dtype.size * math.prod(weight.shape) for weight in weights)
        self.write(outputs.StepEvent.MODEL, variables=len(weights), bytes=size)

    def write(self, event: outputs.StepEvent, **facts: object) -> None:
        """Write a line with facts about an event."""
        record = {"time": round(time.time(), 6), "event": event.value, **facts}
        self._lines.write(json.dumps(record) + "\n")


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.StorageError(
            f"Logs and results cannot be copied ({error}): see trainer.checkpoint.uri. A new run "
            "resumes from the last checkpoint."
        ) from error
