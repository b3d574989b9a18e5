"""Parses the records of a run. Pure: takes the texts of the trainer's files."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel_trainer.contract import outputs


class RecordsError(ValueError):
    """The records do not describe one complete run. The message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """An update of the weights."""

    at: float
    """When its end was known, in seconds of some clock."""
    examples: int
    loss: float
    staleness: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """Loss and metrics at the end of an epoch, and when they were there."""

    at: float
    metrics: Mapping[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch: its steps in their order."""

    began: float
    steps: Sequence[Step]
    evaluation: Evaluation | None

    @property
    def seconds(self) -> float:
        """From its begin to its last step."""
        return self.steps[-1].at - self.began

    @property
    def examples(self) -> int:
        """How many it used."""
        return sum(step.examples for step in self.steps)

    @property
    def loss(self) -> float:
        """The mean of the training loss over its examples."""
        return sum(step.loss * step.examples for step in self.steps) / self.examples


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """How large the model is."""

    variables: int
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Traffic:
    """What the processes of a run had sent over TCP at a moment."""

    at: float
    """By the clock of the steps."""
    bytes: int
    segments: int
    """TCP segments that carried data."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrialRun:
    """A run that has ended."""

    model: Model
    epochs: Sequence[Epoch]
    seconds: float
    """From the start of the leading process to its end."""
    metrics: Mapping[str, float]
    """The last loss and metrics; those of the evaluation begin with val_."""
    processes: int
    traffic: Sequence[Traffic]
    """In the order of time; empty where the system does not tell it."""
    others: float | None = None
    """The share of the machine's CPU time that other programs used meanwhile; None: not known."""

    @property
    def steps(self) -> list[Step]:
        """All steps."""
        return [step for epoch in self.epochs for step in epoch.steps]

    @property
    def trained_from(self) -> float:
        """The end of the first step: what is before it is starting and tracing."""
        return self.epochs[0].steps[0].at


def parse(step_log: str, summary: str, processes: int, traffic: Sequence[Traffic]) -> TrialRun:
    """Read what a run left.

    Args:
        step_log: the content of `outputs.STEP_LOG`.
        summary: that of `outputs.SUMMARY`.
        processes: how many the run had.
        traffic: what was seen of their connections.

    Raises:
        RecordsError: the run was restarted, or made no step.
    """
    lines = [json.loads(line) for line in step_log.splitlines()]
    models = [line for line in lines if line["event"] == outputs.StepEvent.MODEL]
    if len(models) != 1:
        raise RecordsError(f"the run was started {len(models)} times, so its times tell nothing")
    epochs = tuple(epoch for epoch in _epochs(lines) if epoch.steps)
    if not epochs:
        raise RecordsError("the run made no step")
    ended = outputs.Summary.model_validate_json(summary)
    return TrialRun(
        model=Model(models[0]["variables"], models[0]["bytes"]),
        epochs=epochs,
        seconds=ended.duration_seconds,
        metrics={name: float(value) for name, value in ended.metrics.items()},
        processes=processes,
        traffic=traffic,
    )


def _epochs(lines: Sequence[Mapping[str, Any]]) -> Iterator[Epoch]:
    began = [index for index, line in enumerate(lines) if line["event"] == outputs.StepEvent.EPOCH]
    for first, end in zip(began, [*began[1:], len(lines)], strict=True):
        steps = [
            Step(line["time"], line["examples"], float(line["loss"]), line.get("staleness"))
            for line in lines[first:end]
            if line["event"] == outputs.StepEvent.STEP
        ]
        evaluations = [
            Evaluation(
                line["time"], {name: float(value) for name, value in line["metrics"].items()}
            )
            for line in lines[first:end]
            if line["event"] == outputs.StepEvent.EVALUATION
        ]
        yield Epoch(lines[first]["time"], steps, evaluations[-1] if evaluations else None)
