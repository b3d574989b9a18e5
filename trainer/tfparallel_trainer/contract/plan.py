"""The plan of a split model: what `tfparallel plan` asks the trainer for, and what it gets.

And how the pipeline of a run went: `outputs.PIPELINE`. Bytes are whole numbers, times are seconds.
Equal questions give equal bytes of JSON.
"""

import itertools
from collections.abc import Sequence
from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base, job_file, progress

MODULE = "tfparallel_trainer.engines.split.planning"
"""Run with `python -m`: reads a question as JSON from its input and writes a plan to its output."""

MESSAGE = "message"
"""The work of a span in which a stage sends or receives."""

Count = Annotated[int, pydantic.Field(ge=1)]


class Axes(base.Model):
    """How many ranks each axis of a mesh has; their product is the number of devices."""

    data: Count = 1
    """Replicas of the model; each takes its part of the batch."""
    stage: Count = 1
    """Stages, each with its part of the layers."""
    spatial: Count = 1
    """Parts of the height of images."""
    tensor: Count = 1
    """Parts of channels and features."""

    def __str__(self) -> str:
        """Axes with more than one rank."""
        axes = {name: degree for name, degree in self.model_dump().items() if degree > 1}
        return " x ".join(f"{name} {degree}" for name, degree in axes.items()) or "one device"


class Question(base.Model):
    """The model and the devices to plan for."""

    folder: str
    """Where the user's module lies."""
    module: str
    """Its file, relative to the folder."""
    processes: Count = 1
    """Processes, as many as pods."""
    devices: Count
    """Devices of each process."""
    memory: Count | None = None
    """Bytes of each device; absent: those of its type, or no limit."""
    device_type: str | None = None
    """One of `gpu_types.DEVICE_TYPES`; absent: cores of a processor."""
    mesh: dict[str, int] | None = None
    """Degrees by axis, one of them -1 for all other devices; absent: the planner chooses."""
    microbatches: Count | None = None
    """Parts of a batch that follow each other; absent: the planner chooses."""
    schedule: job_file.PipelineSchedule = job_file.PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    """The order of a stage's work."""
    batch: Count = 32
    """Examples of a step over all devices."""
    shard_optimizer: bool | None = None
    """Whether ranks along the data axis share the optimizer's state; absent: the planner
    chooses."""
    recompute: bool | None = None
    """Whether backward passes compute activations again; absent: the planner chooses."""
    length: Count | None = None
    """Value for input dimensions that are unknown until data is loaded."""
    seed: int = 0
    """As in the job."""
    saves_checkpoints: bool = False
    """Whether agents copy the state in memory."""
    requested_memory: Count | None = None
    """Bytes that a pod requests; absent: the job does not say."""
    calibrate: bool = False
    """Whether nodes are measured on this machine instead of estimated."""


class Bytes(base.Model):
    """What a device of a stage holds."""

    parameters: int
    """Weights and statistics."""
    gradients: int
    """Of the weights that are trained."""
    slots: int
    """The optimizer's."""
    activations: int
    """What backwards need of the microbatches that are held at one time, and the batch itself."""
    working: int
    """Of the widest node while it runs, and the gradients of a microbatch that are added up."""
    peak: int
    """The most at one time: parameters, gradients and slots, with either activations and the widest
    node, or what the optimizer computes from the gradients."""

    @property
    def update(self) -> int:
        """What the optimizer computes from the gradients if that makes the peak, else 0."""
        update = self.peak - self.parameters - self.gradients - self.slots
        return update if update > self.activations + self.working else 0


class Stage(base.Model):
    """What the ranks of one stage do in a step."""

    nodes: tuple[str, ...]
    """Calls of layers and operations, in order."""
    split: dict[str, str]
    """Of those that several ranks share: how, by node."""
    holds: Bytes
    """On each of its devices."""
    held_microbatches: int
    """The most whose activations it holds at one time."""
    forward_seconds: float
    """Of one microbatch."""
    backward_seconds: float
    """Of one microbatch."""
    message_seconds: float
    """Of one microbatch: taking from other stages and giving to them."""
    update_seconds: float
    """After the last microbatch: sums over the replicas, the optimizer."""
    sent_bytes: int
    """Of a step, by one rank, forward and backward."""
    busy_seconds: float
    """Of a step: all but waiting."""


class Rank(base.Model):
    """One device, its number in its process, and its place along each axis."""

    rank: int
    process: int
    device: int
    data: int
    stage: int
    spatial: int
    tensor: int


def ranks(mesh: Axes, devices: int) -> tuple[Rank, ...]:
    """Return the ranks of a mesh row by row, the last axis varying fastest, for processes alike."""
    axes = mesh.model_dump()
    places = itertools.product(*map(range, axes.values()))
    return tuple(
        Rank(
            rank=number,
            process=number // devices,
            device=number % devices,
            **dict(zip(axes, position, strict=True)),
        )
        for number, position in enumerate(places)
    )


class Span(base.Model):
    """What a stage does for a while, in seconds after the begin of the step."""

    stage: int
    work: str
    """forward, backward or message."""
    microbatch: int
    begin: float
    end: float


class Alternative(base.Model):
    """What else could be done."""

    mesh: Axes
    microbatches: int
    """Parts of a replica's batch."""
    what: str
    """How it differs, or why it is impossible."""
    step_seconds: float | None
    """Of a step; absent when it is impossible."""
    peak_bytes: int
    """Of the device that holds most."""


class Plan(base.Model):
    """A mesh, the stages on it, and what they cost."""

    mesh: Axes
    microbatches: int
    """Parts of a replica's batch."""
    schedule: job_file.PipelineSchedule
    """The order of a stage's work."""
    shard_optimizer: bool = False
    """Whether ranks along the data axis share the optimizer's state."""
    recompute: bool = False
    """Whether backward passes compute activations again."""
    batch: int
    """Examples of a step."""
    memory: int | None
    """Bytes of each device, where there is a limit."""
    measured: bool
    """Whether times come from a measurement on this machine."""
    device_type: str | None = None
    """The GPU for which times are estimated; absent: a core of a processor."""
    order: tuple[int, ...]
    """Positions of the nodes in the model, in the order in which stages have them."""
    ends: tuple[int, ...]
    """Behind how many of these each stage but the last one ends."""
    stages: tuple[Stage, ...]
    ranks: tuple[Rank, ...]
    step_seconds: float
    bubble: float
    """Share of the schedule in which stages compute nothing, on average: `bubble`."""
    message_share: float
    """The part of it in which they send and receive."""
    spans: tuple[Span, ...]
    """What one replica does in a step, update left out."""
    reasons: tuple[str, ...]
    """Why so, in sentences."""
    alternatives: tuple[Alternative, ...]
    """The next best first."""

    @property
    def shardings(self) -> dict[str, str]:
        """How nodes are split that several ranks share, by node."""
        return dict(itertools.chain.from_iterable(stage.split.items() for stage in self.stages))


def bubble(spans: Sequence[Span], stages: int) -> float:
    """Return the share of a schedule in which stages compute nothing, on average.

    Messages count as nothing computed, because a run cannot tell them from waiting. The schedule
    lasts from the first work to the last; the update is not a part of it.
    """
    return 1 - sum(_lengths(spans, messages=False)) / _stage_seconds(spans, stages)


def message_share(spans: Sequence[Span], stages: int) -> float:
    """Return the share of a schedule in which stages send or receive, on average."""
    return sum(_lengths(spans, messages=True)) / _stage_seconds(spans, stages)


def _lengths(spans: Sequence[Span], *, messages: bool) -> list[float]:
    return [span.end - span.begin for span in spans if (span.work == MESSAGE) is messages]


def _stage_seconds(spans: Sequence[Span], stages: int) -> float:
    """Return the time of all stages together from the first work to the last."""
    works = [span for span in spans if span.work != MESSAGE]
    return stages * (max(span.end for span in works) - min(span.begin for span in works))


class Pipeline(base.Model):
    """What the chief of a split model has seen of the last steps."""

    placement: progress.Placement
    """Where the stages are, and how long each computes in a step."""
    planned: Plan | None
    """What the planner expected; absent where mesh.cuts says where stages begin."""
    step_seconds: float | None
    """From the begin of a step to that of the next, the median; absent after one step."""
    spans: tuple[Span, ...]
    """When each stage of the first replica worked on what, in the step of median length. Messages
    are not told apart from waiting. Clocks of several machines may differ by milliseconds."""
