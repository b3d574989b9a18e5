"""What the shipped trainer runs: `spec.trainer` of a job, and the file that carries it."""

import enum
import math
import re
from typing import Annotated, Self

import pydantic

from tfparallel_trainer.contract import base, source_code


class Strategy(enum.StrEnum):
    """How the replicas train together."""

    MIRRORED = "Mirrored"
    MULTI_WORKER_MIRRORED = "MultiWorkerMirrored"
    PARAMETER_SERVER = "ParameterServer"
    MODEL_SPLIT = "ModelSplit"
    CUSTOM = "Custom"
    TPU = "TPU"


URI = "^(s3|gs)://[a-z0-9][a-z0-9._-]*(/.*)?$"
"""What the address of a prefix in an object store looks like."""

_NAME = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
"""What the name of a claim looks like."""

_EVERY_STEPS = 100


class Checkpoint(base.Model):
    """Where state is kept, so that a restart resumes, and how often it is saved."""

    claim: Annotated[str, pydantic.Field(max_length=253, pattern=_NAME)] | None = None
    """Name of a PersistentVolumeClaim that every replica can mount (ReadWriteMany when they run on
    several nodes). `tfparallel run` uses a folder of that name below its own. Give this or uri."""

    uri: Annotated[str, pydantic.Field(max_length=1024)] | None = None
    """A prefix in an object store, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX. The job keeps
    checkpoints, logs and the trained model below its namespace and name there, with the
    credentials of the container's environment. Give this or claim."""

    every_steps: Annotated[int, pydantic.Field(ge=1)] | None = None
    """A checkpoint is saved after each step whose number is divisible by this; absent, and
    everyMinutes too: by 100. One is saved at the end of each epoch besides."""

    every_minutes: Annotated[int, pydantic.Field(ge=1)] | None = None
    """A checkpoint is saved when this many minutes have passed since the last one, by the chief's
    clock. With everySteps too, whichever comes first."""

    keep: Annotated[int, pydantic.Field(ge=1, le=1000)] = 3
    """How many of the newest checkpoints are kept."""

    @pydantic.model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.claim is None) == (self.uri is None):
            received = "neither" if self.claim is None else "both"
            raise ValueError(f"give either claim or uri; {received} is given")
        if self.uri is not None and not re.match(URI, self.uri):
            raise ValueError(
                f"uri is {self.uri!r}: give s3://BUCKET/PREFIX or gs://BUCKET/PREFIX, or give claim"
            )
        return self

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
    """The step's update is left out, and training continues."""


class Verify(enum.StrEnum):
    """Which steps are compared with the same step of one process."""

    AUTO = "Auto"
    """Steps 1, 2, 4, 8 and so on, and the first one after a restart or a change by a callback."""
    ALWAYS = "Always"
    """Every step."""
    OFF = "Off"
    """None."""


class JitCompile(enum.StrEnum):
    """Whether XLA compiles a step."""

    AUTO = "Auto"
    """As Keras does: on one device, if the module compiles the model so."""
    ON = "On"
    """On each device."""
    OFF = "Off"
    """Nowhere."""


class TrainerSpec(base.Model):
    """What the shipped trainer runs."""

    module: Annotated[str, pydantic.Field(min_length=1)] = "model.py"
    """The user's Python file, relative to the source, or to /workspace of the image. It defines
    build_model, compile_model, training_data and optionally evaluation_data; build_strategy for
    strategy Custom."""

    source: source_code.Source | None = None
    """Where the module comes from; absent: the image brings it below /workspace."""

    epochs: Annotated[int, pydantic.Field(ge=1)] | None = None
    """How often the training data is gone through. Give this or steps."""

    steps: Annotated[int, pydantic.Field(ge=1)] | None = None
    """How many optimizer steps are made in all. Give this or epochs."""

    global_batch_size: Annotated[int, pydantic.Field(ge=1)] = 32
    """Examples in one optimizer step over all replicas together."""

    seed: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 0
    """Seed of initial weights, order of examples and dropout."""

    steps_per_execution: Annotated[int, pydantic.Field(ge=1)] | None = None
    """At most how many steps one call of TensorFlow computes. Absent: one, and 16 when steps are
    seen to be short and many. Mirrored and MultiWorkerMirrored use it."""

    initial_weights: Annotated[str, pydantic.Field(min_length=1)] | None = None
    """A file that Keras wrote (.keras or .weights.h5), whose weights the first step begins with.
    Write a path, relative to the source or absolute, or an address in a bucket (s3://… or gs://…).
    A checkpoint goes before it. Absent: build_model's own."""

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
    """What happens when the loss or the gradients of a step are NaN or infinite. Stop ends the job
    and names the last checkpoint. Continue leaves the step's update out. With the loss scaling of
    mixed precision, gradients that overflow are part of its work, and only the loss counts."""

    verify: Verify = Verify.AUTO
    """Which steps are compared with one process, on a few examples of their batch. Auto: steps 1,
    2, 4, 8 and so on, and the first one after a restart or a change by a callback. Always: every
    step, which is slow. Off: none. If loss, gradients, weights or other state differ by more than
    rounding explains, the job fails before the next checkpoint, with exit code 67."""

    jit_compile: JitCompile = JitCompile.AUTO
    """Whether XLA compiles what a device computes between collectives. Auto: on one device, as
    Keras decides, if XLA can. On: on each device; a model that XLA cannot compile is refused. Off:
    nowhere. Mirrored and MultiWorkerMirrored use it."""

    start_timeout_seconds: Annotated[int, pydantic.Field(ge=1)] = 600
    """How long a replica waits for its peers before it ends and names who is missing."""

    step_timeout_seconds: Annotated[int, pydantic.Field(ge=1)] = 1800
    """How long a replica may go without the end of a step, of a batch of the evaluation or of a
    checkpoint. Before and after the steps it counts a call of one of the module's functions, the
    reading of a checkpoint, or an export. Then the replica shows the stacks of its threads and ends
    with exit code 79. Outside of steps a replica waits for the others ten times as long, and
    startTimeoutSeconds and ten minutes more."""

    first_step_timeout_seconds: Annotated[int, pydantic.Field(ge=1)] | None = None
    """The same for the first step of an attempt, which also builds its graph. Absent:
    stepTimeoutSeconds."""

    evaluation_timeout_seconds: Annotated[int, pydantic.Field(ge=1)] | None = None
    """The same for a batch of the evaluation. Absent: stepTimeoutSeconds."""

    @pydantic.model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            count = "neither" if self.epochs is None else "both"
            raise ValueError(f"give either epochs or steps; {count} is given")
        return self


class PipelineSchedule(enum.StrEnum):
    """The order in which a stage works on the microbatches of a step."""

    ONE_FORWARD_ONE_BACKWARD = "1F1B"
    """Backward as soon as possible: a stage keeps the activations of few microbatches."""
    GPIPE = "GPipe"
    """All forward, then all backward: a stage keeps the activations of all microbatches."""


Degree = Annotated[int, pydantic.Field(ge=-1, le=4095)]
"""Number of ranks along an axis; -1: as many as the devices give."""

MAX_LAYER_LETTERS = 253
LayerName = Annotated[str, pydantic.Field(min_length=1, max_length=MAX_LAYER_LETTERS)]

INFERRED = -1
"""The degree of an axis that follows from the devices and the other axes."""


class Mesh(base.Model):
    """How the devices of a job share a model: the product of the axes is the number of devices."""

    data: Degree = 1
    """Parts that each batch is divided into. One axis of the mesh may be -1: as many as the devices
    give."""

    stage: Degree = 1
    """Stages that the layers are divided into, one after the other (inter-layer parallelism)."""

    spatial: Degree = 1
    """Parts that the height of images is divided into (intra-layer parallelism of convolutions)."""

    tensor: Degree = 1
    """Parts that the channels and features of a layer are divided into (intra-layer parallelism of
    its weights)."""

    cuts: Annotated[tuple[LayerName, ...], pydantic.Field(max_length=255)] = ()
    """The layers that stages begin with, one name for each stage but the first. Absent: the stages
    get about equal work, by an estimate."""

    microbatches: Annotated[int, pydantic.Field(ge=1, le=4096)] = 1
    """Parts of each batch that go through the stages one after the other; trainer.globalBatchSize
    is divisible by data times this."""

    schedule: PipelineSchedule = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    """The order of a stage's work: 1F1B goes backward as soon as possible and keeps fewer
    activations, GPipe goes forward with all microbatches first."""

    auto: bool = False
    """True: the planner chooses the axes and the microbatches for the model and the devices. Unless
    they are true, it also chooses shardOptimizer and recompute."""

    shard_optimizer: bool = False
    """True: each rank along the data axis updates a slice of each weight and keeps the optimizer's
    state of that slice only (ZeRO). The weights stay whole. Needs an optimizer that changes each
    element by itself, such as AdamW."""

    recompute: bool = False
    """True: forward passes keep only the tensors between segments of a stage, and backward passes
    compute the rest again. This takes less memory and more time."""

    @property
    def axes(self) -> dict[str, int]:
        """The degrees as given, by the name of the axis."""
        return self.model_dump(include={"data", "stage", "spatial", "tensor"})

    @pydantic.model_validator(mode="after")
    def _possible(self) -> Self:
        """Refuse axes that no number of devices fits."""
        for name, degree in self.axes.items():
            if degree == 0:
                raise ValueError(f"{name} is 0: give a number from 1, or -1 for the rest")
        inferred = [name for name, degree in self.axes.items() if degree == INFERRED]
        if len(inferred) > 1:
            raise ValueError(
                f"{' and '.join(inferred)} are -1: only one axis may be, give a number"
            )
        if self.cuts and not self.auto and self.stage not in (INFERRED, len(self.cuts) + 1):
            raise ValueError(
                f"{len(self.cuts)} cuts make {len(self.cuts) + 1} stages, and stage is"
                f" {self.stage}: change one of them"
            )
        if self.auto and (
            self.cuts or any(degree != 1 for degree in (*self.axes.values(), self.microbatches))
        ):
            raise ValueError(
                "auto lets the planner choose axes, cuts and microbatches: remove those that are"
                " given, or remove auto"
            )
        if self.shard_optimizer and not self.auto and self.data == 1:
            raise ValueError(
                "shardOptimizer is true and data is 1, so that no ranks could share the"
                " optimizer's state: give data at least 2, or remove shardOptimizer"
            )
        return self

    def for_devices(self, devices: int) -> Self:
        """Return the mesh over the devices of all processes, with the axis that is -1 filled in.

        If the axes do not fit the devices, or with auto are the planner's, it is a ValueError.
        """
        if self.auto:
            raise ValueError("mesh.auto is true: the planner gives the axes")
        product = math.prod(degree for degree in self.axes.values() if degree != INFERRED)
        axes = " x ".join(f"{name} {degree}" for name, degree in self.axes.items())
        inferred = [name for name, degree in self.axes.items() if degree == INFERRED]
        if inferred and devices % product:
            raise ValueError(
                f"mesh is {axes}, and {devices} devices are not divisible by {product}: change the"
                " axes, the replicas or their devices"
            )
        if not inferred and devices != product:
            raise ValueError(
                f"mesh is {axes} = {product}, and there are {devices} devices: change the axes, the"
                " replicas or their devices, or set one axis to -1"
            )
        full = self.model_copy(update=dict.fromkeys(inferred, devices // product))
        if full.cuts and full.stage != len(full.cuts) + 1:
            raise ValueError(
                f"mesh.stage is -1, which {devices} devices make {full.stage}, and"
                f" {len(full.cuts)} cuts make {len(full.cuts) + 1} stages: change one of them"
            )
        return full

    def check_batch(self, size: int) -> None:
        """Refuse (ValueError) a batch that cannot be divided by a mesh whose axes are all numbers.

        Without microbatches the parts of a batch may be unequal, but none may be empty.
        """
        parts = self.data * self.microbatches
        if size < parts or (self.microbatches > 1 and size % parts):
            raise ValueError(
                f"trainer.globalBatchSize is {size}, which is not divisible by mesh.data"
                f" {self.data} x mesh.microbatches {self.microbatches}: change one of them"
            )


class JobFile(base.Model):
    """Content of the job file (JSON)."""

    name: str
    """The job's name: names its runs in logs."""

    strategy: Strategy

    trainer: TrainerSpec

    mesh: Mesh | None = None
    """How the devices share the model; given with strategy ModelSplit, and only there."""

    evaluator: bool = False
    """Whether a replica of its own evaluates; those that train then leave evaluation to it."""

    @pydantic.model_validator(mode="after")
    def _mesh_where_it_belongs(self) -> Self:
        if (self.mesh is None) == (self.strategy is Strategy.MODEL_SPLIT):
            received = "is not given" if self.mesh is None else "is given"
            raise ValueError(
                f"mesh {received} and strategy is '{self.strategy}': a mesh belongs to strategy"
                f" '{Strategy.MODEL_SPLIT}', which needs one"
            )
        return self
