"""What the shipped trainer runs: `spec.trainer` of a job, and the file that carries it."""

import enum
from typing import Annotated, Self

import pydantic

from tfparallel_trainer.contract import base

_EVERY_STEPS = 100


class ConfigMapSource(base.Model):
    """Files of a ConfigMap."""

    name: Annotated[str, pydantic.Field(min_length=1)]
    """Name of a ConfigMap in the job's namespace; each of its keys becomes a file."""


class Source(base.Model):
    """Where the user's module comes from when it is not part of the image."""

    config_map: ConfigMapSource
    """A ConfigMap whose keys are the module's files.
    `tfparallel run` takes the folder of the job's file instead."""


class Checkpoint(base.Model):
    """Where state is kept, so that a restart resumes, and how often it is saved."""

    claim: Annotated[str, pydantic.Field(min_length=1)]
    """Name of a PersistentVolumeClaim that every replica can mount (ReadWriteMany when they run on
    several nodes). `tfparallel run` uses a folder of that name below its own."""

    every_steps: Annotated[int, pydantic.Field(ge=1)] | None = None
    """A checkpoint is saved after each step whose number divides by this; absent, and everyMinutes
    too: by 100. One is saved at the end of each epoch besides."""

    every_minutes: Annotated[int, pydantic.Field(ge=1)] | None = None
    """A checkpoint is saved when this many minutes have passed since the last one, by the chief's
    clock. With everySteps too, whichever comes first."""

    keep: Annotated[int, pydantic.Field(ge=1, le=1000)] = 3
    """How many of the newest checkpoints are kept."""

    @property
    def steps_between(self) -> int | None:
        """Steps between two checkpoints; None when the clock alone decides."""
        if self.every_steps is None and self.every_minutes is None:
            return _EVERY_STEPS
        return self.every_steps


class OnNonFiniteLoss(enum.StrEnum):
    """What a step whose loss or gradients are NaN or infinite leads to."""

    STOP = "Stop"
    """Training ends with exit code 66, and nothing more is saved."""
    CONTINUE = "Continue"
    """The step's update is left out, and training goes on."""


class TrainerSpec(base.Model):
    """What the shipped trainer runs."""

    module: Annotated[str, pydantic.Field(min_length=1)] = "model.py"
    """The user's Python file, relative to the source (or, without one, to the image's /workspace):
    build_model, compile_model, training_data and, if wanted, evaluation_data; build_strategy for
    strategy Custom."""

    source: Source | None = None
    """Where the module comes from; absent: the image brings it below /workspace."""

    epochs: Annotated[int, pydantic.Field(ge=1)] | None = None
    """How often the training data is gone through. Give this or steps."""

    steps: Annotated[int, pydantic.Field(ge=1)] | None = None
    """How many optimizer steps are made in all. Give this or epochs."""

    global_batch_size: Annotated[int, pydantic.Field(ge=1)] = 32
    """Examples in one optimizer step over all replicas together."""

    seed: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 0
    """Seed of initial weights, order of examples and dropout."""

    initial_weights: Annotated[str, pydantic.Field(min_length=1)] | None = None
    """A file that Keras wrote (.keras or .weights.h5), relative to the source or absolute, whose
    weights the first step begins with. A checkpoint goes before it. Absent: build_model's own."""

    saved_model: bool = False
    """Whether the trained model is exported as a SavedModel too (the folder saved_model), which
    TensorFlow Serving reads; model.keras is written always."""

    checkpoint: Checkpoint | None = None
    """Where state is kept; absent: a restart begins at step 0 and the final model is not kept."""

    max_staleness: Annotated[int, pydantic.Field(ge=0)] | None = None
    """Only for strategy ParameterServer: how many steps of others may come between reading the
    weights and applying the gradient. An older gradient is dropped and its batch given out again.
    Absent: no bound."""

    on_non_finite_loss: OnNonFiniteLoss = OnNonFiniteLoss.STOP
    """What a step whose loss or gradients are NaN or infinite leads to: Stop ends the job and names
    the last checkpoint, Continue leaves the step's update out. With the loss scaling of mixed
    precision, gradients that overflow are part of its work, and only the loss counts."""

    start_timeout_seconds: Annotated[int, pydantic.Field(ge=1)] = 600
    """How long a replica waits for its peers before it ends and names who is missing."""

    step_timeout_seconds: Annotated[int, pydantic.Field(ge=1)] = 1800
    """How long training may go without the end of a step, of a batch of the evaluation or of a
    checkpoint. Then the replica shows the stacks of its threads and ends with exit code 79. The
    first step counts too, so leave time for building its graph."""

    @pydantic.model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            given = "neither" if self.epochs is None else "both"
            raise ValueError(f"give either epochs or steps; {given} is given")
        return self


class JobFile(base.Model):
    """Content of the job file (JSON)."""

    name: str
    """The job's name: names its runs in logs."""

    strategy: str
    """One of the strategies of `spec.strategy`."""

    trainer: TrainerSpec

    evaluator: bool = False
    """Whether a replica of its own evaluates; those that train then leave evaluation to it."""
