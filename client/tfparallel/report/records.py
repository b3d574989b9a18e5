"""What a run left, as values. Pure: takes the texts of its files."""

import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic

from tfparallel import models
from tfparallel_operator.api import load
from tfparallel_trainer.contract import outputs, plan


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """A line of the train log."""

    time: datetime.datetime
    event: str
    step: int
    fields: Mapping[str, Any]

    @property
    def metrics(self) -> Mapping[str, float]:
        """Loss and metrics; some may not be finite."""
        return {name: float(value) for name, value in self.fields.get("metrics", {}).items()}

    @property
    def is_first_step(self) -> bool:
        """Whether a process of the trainer has just made its first step."""
        return self.event == outputs.TrainEvent.FIRST_STEP


@dataclasses.dataclass(frozen=True, slots=True)
class PodRun:
    """A process of a replica from its start to its end."""

    replica: str
    pod: str
    attempt: int
    node: str
    started: datetime.datetime
    ended: datetime.datetime | None
    """None: it runs, or nobody saw its end."""
    outcome: str
    """How it ended, in words; empty while it runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that is known of a run at one moment."""

    job: models.Job
    place: str
    """Where it ran, in words."""
    now: datetime.datetime
    """When a run that has not ended was looked at, or was last seen alive."""
    is_cut_off: bool = False
    """Whether its processes ended before the job."""
    events: Sequence[models.Event] = ()
    """Of the job alone, oldest first."""
    pods: Sequence[PodRun] = ()
    records: Sequence[Record] = ()
    """The train log, oldest first."""
    summary: outputs.Summary | None = None
    stages: plan.Pipeline | None = None
    """How the stages of a split model worked."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missing_results: str = ""
    """Why no train log is here, as a sentence; empty where one is."""

    @property
    def begin(self) -> datetime.datetime:
        """When it was created."""
        moments = [self.job.created, *(event.time for event in self.events[:1])]
        return min([*moments, *(record.time for record in self.records[:1])])

    @property
    def end(self) -> datetime.datetime:
        """When it ended, or was looked at."""
        ended = self.job.status.completion_time if self.job.is_finished else self.now
        moments = [event.time for event in self.events] if self.job.is_finished else []
        return max([ended or self.now, *moments, *(record.time for record in self.records[-1:])])


def parse_log(text: str, file: str) -> Sequence[Record]:
    """Read a train log; what follows its last line end is being written.

    Raises:
        SpecError: a line is none of the trainer's.
    """
    return tuple(_parse_lines(text.split("\n")[:-1], file))


def _parse_lines(lines: Sequence[str], file: str) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            time = datetime.datetime.fromisoformat(fields.pop("time"))
            yield Record(time, str(fields.pop("event")), int(fields.pop("step")), fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise load.SpecError(
                f"{file}:{number}: not a record of the trainer: {line[:80]!r}. Remove the line, and"
                " run the command again"
            ) from error


def parse_summary(content: str) -> outputs.Summary | None:
    """Read a summary; None where another version wrote what this one cannot read."""
    try:
        return outputs.Summary.model_validate_json(content)
    except pydantic.ValidationError:
        return None


def parse_pipeline(content: str) -> plan.Pipeline | None:
    """Read how a pipeline went; None where another version wrote what this one cannot read."""
    try:
        return plan.Pipeline.model_validate_json(content)
    except pydantic.ValidationError:
        return None
