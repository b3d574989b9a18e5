"""What a run left, as values. Pure: takes the texts of its files."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

import pydantic

from tfparallel import models, train_log
from tfparallel_operator.core.status import goodput
from tfparallel_trainer.contract import outputs, plan


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


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """The end of the log of a replica."""

    replica: str
    lines: Sequence[str]
    source: str
    """How to see all of it: a file, or a command."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """All that is known of a run at one moment."""

    job: models.Job
    source: str
    """Where it ran, in words."""
    now: datetime.datetime
    """When a run that has not ended was looked at, or was last seen alive."""
    is_cut_off: bool = False
    """Whether its processes ended before the job."""
    events: Sequence[models.Event] = ()
    """Of the job alone, oldest first."""
    pods: Sequence[PodRun] = ()
    records: Sequence[train_log.Record] = ()
    """The train log, oldest first."""
    summary: outputs.Summary | None = None
    stages: plan.Pipeline | None = None
    """How the stages of a split model worked."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missing_results: str = ""
    """Why no train log is here, as a sentence; empty where one is."""
    is_local: bool = False
    """Whether it ran on this machine, where no limit of a pod holds."""
    log: Log | None = None
    """What the replica wrote last that says why the job failed; None: no log is here."""

    @property
    def begin(self) -> datetime.datetime:
        """When it was created."""
        moments = [self.job.created, *(event.time for event in self.events[:1])]
        return min([*moments, *(record.time for record in self.records[:1])])

    @property
    def end(self) -> datetime.datetime:
        """When it ended, or was looked at."""
        logged = [record.time for record in self.records[-1:]]
        if not self.job.is_finished:
            return max([self.begin, self.now, *logged])
        status = self.job.status
        moments = [event.time for event in self.events]
        # Not every version has written when a job ended.
        changes = (condition.last_transition_time for condition in status.conditions)
        ended = status.completion_time or max(changes, default=self.now)
        return max([self.begin, ended, *moments, *logged])

    def measure_goodput(self) -> goodput.Goodput | None:
        """Divide the job's age among activities; None: no operator has recorded its goodput."""
        return goodput.measure(self.job.status, self.now)

    def seconds_at(self, moment: datetime.datetime) -> float:
        """Return how long after the begin a moment is."""
        return (moment - self.begin).total_seconds()


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
