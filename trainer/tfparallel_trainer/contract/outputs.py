"""What a finished run leaves in the output directory."""

import enum
import math
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base, progress

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints."""

OWNER = "owner.json"
"""The file of that folder that says which job and process writes to it."""

HEARTBEAT = "heartbeat.json"
"""The file of that folder that the process rewrites while it lives."""

MODULE = "module.sha256"
"""The file of that folder with the sum of the user's module that trained the newest checkpoint."""

MODEL = "model.keras"
"""The trained model; plain Keras loads it."""

SAVED_MODEL = "saved_model"
"""Folder of the trained model as a SavedModel, where the job asks for one."""

SUMMARY = "summary.json"
"""A `Summary`; its presence with `done: true` says that this job has finished."""

PIPELINE = "pipeline.json"
"""With strategy ModelSplit how the stages of the last steps worked: a `plan.Pipeline`."""

TRAIN_LOG = "logs/train.jsonl"
"""One JSON object a line: what happened during training. `time` is in UTC, `event` as in
`TrainEvent`, `step` the steps made. Its other fields follow from the event."""

STEP_LOG = "logs/steps.jsonl"
"""One JSON object a line for each step, if `environment.STEP_LOG` asks for it. `time` is in seconds
since 1970, `event` as in `StepEvent`. Its other fields follow from the event."""

EVALUATION_LOG = "logs/evaluation.jsonl"
"""The same of an evaluator."""

EVALUATION = "evaluation.json"
"""How far an evaluator has come: an `Evaluated`."""

TENSORBOARD = "logs/tensorboard"
"""Folder of TensorBoard's event files: `train` and `evaluation`."""


class TrainEvent(enum.StrEnum):
    """What a line of the train log tells."""

    FIRST_STEP = "firstStep"
    """The first step of a process is made: its `attempt`, `seconds` since its start, `versions`."""
    TRAIN = "train"
    """Training continues: `epoch`, `metrics`, `examplesPerSecond`, the coordinator's `memoryBytes`,
    the `straggler` if there is one, and with parameter servers how many updates had which
    `staleness`."""
    EVALUATION = "evaluation"
    """An evaluation has ended: `metrics`."""
    CHECKPOINT = "checkpoint"
    """A checkpoint is saved: training stood still for `seconds`, and went on while the write took
    `writeSeconds`."""
    LEFT_OUT = "leftOut"
    """The update of a step is left out: `reason`."""
    VERIFIED = "verified"
    """A step was compared with one process: relative `differences` by quantity, what was
    `omitted`."""
    DONE = "done"
    """All is trained, and the results are written."""


class StepEvent(enum.StrEnum):
    """What a line of the step log tells."""

    MODEL = "model"
    """The process is ready to train: `variables` and `bytes` of the weights that are trained."""
    EPOCH = "epoch"
    """An epoch begins, or is resumed after a restart."""
    STEP = "step"
    """A step is made: its number `step`, `examples`, `loss`, and with parameter servers
    `staleness`."""
    EVALUATION = "evaluation"
    """An evaluation has ended: `metrics`."""


Number = float | str
"""A JSON number; those that JSON cannot write are the strings NaN, Infinity and -Infinity."""


class Summary(base.Model):
    """How a run ended."""

    done: bool
    """Always true: the file is written when everything else is."""

    job_digest: str
    """SHA-256 of the job file's content; a job file that differs is another run."""

    job_uid: str = ""
    """The job's uid; empty outside a cluster."""

    module_digest: str | None = None
    """SHA-256 of the user's module; versions that did not compare it left it out."""

    steps: Annotated[int, pydantic.Field(ge=0)]
    """Optimizer steps made, over all attempts."""

    epochs: Annotated[int, pydantic.Field(ge=0)]
    """Epochs completed."""

    attempt: Annotated[int, pydantic.Field(ge=1)]
    """The attempt that finished."""

    duration_seconds: Annotated[float, pydantic.Field(ge=0)]
    """Time that this attempt took, from the start of the process."""

    metrics: dict[str, Number]
    """The last loss and metrics; those of the evaluation begin with val_."""

    steps_by_worker: dict[str, Annotated[int, pydantic.Field(ge=0)]] | None = None
    """With parameter servers: how many steps of this attempt each worker has made."""


class Evaluated(base.Model):
    """How far the evaluator of a job has come."""

    job_digest: str
    """SHA-256 of the job file's content."""

    job_uid: str
    """The job's uid; empty outside a cluster."""

    beat: Annotated[int, pydantic.Field(ge=0)]
    """Grows while the evaluator has work under way: who waits for it sees that it lives."""

    step: Annotated[int, pydantic.Field(ge=0)] | None = None
    """The step of the checkpoint that was evaluated last; absent before the first."""

    metrics: dict[str, Number] = pydantic.Field(default_factory=dict)
    """Loss and metrics of that checkpoint."""


def number(value: float) -> Number:
    """Write a number so that any JSON reader takes it."""
    return value if math.isfinite(value) else progress.format_number(value)
