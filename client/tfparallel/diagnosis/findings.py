"""A diagnosis, and the facts from which it is made."""

import dataclasses
import datetime
import enum
from collections.abc import Iterator, Sequence

from tfparallel import models
from tfparallel.terminal import ages
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.status.goodput import Goodput
from tfparallel_trainer.contract import documentation


class FindingKind(enum.StrEnum):
    """The kind of a diagnosis, in one word."""

    UNSEEN = "Unseen"
    """No operator has looked at it."""
    REFUSED = "Refused"
    """The API server refuses its pods, or the operator its newest spec."""
    QUEUED = "Queued"
    SUSPENDED = "Suspended"
    PENDING = "Pending"
    STARTING = "Starting"
    RESTARTING = "Restarting"
    STALLED = "Stalled"
    SLOW = "Slow"
    SEPARATE = "Separate"
    """The replicas of a script train a model each."""
    TRAINING = "Training"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class EvidenceSource(enum.StrEnum):
    """Where evidence comes from."""

    CONDITION = "condition"
    POD = "pod"
    CLAIM = "claim"
    EVENT = "event"
    EXIT = "exit"
    LOG = "log"
    PROGRESS = "progress"
    OPERATOR = "operator"
    GOODPUT = "goodput"


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """A fact that supports a diagnosis."""

    source: EvidenceSource
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """A diagnosis: why a job waits, fails or is slow."""

    kind: FindingKind
    sentence: str
    remedy: str
    """What to do; empty: nothing."""
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    """The reason of the condition behind the diagnosis, if it is one of `names.Reason`."""
    goodput: Goodput | None = None
    """Where the job's time went; None: no operator has recorded that, or the job is new."""

    @property
    def page(self) -> str:
        """The page about the reason; empty: no reason."""
        if not self.reason:
            return ""
        return documentation.locate(documentation.REASONS, self.reason.lower())


@dataclasses.dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The facts about a job at one moment."""

    job: models.Job
    replicas: Sequence[models.Replica]
    events: Sequence[models.Event]
    """Oldest first."""
    claims: Sequence[models.Claim]
    """The existing claims of the job, as far as your rights show them."""
    last_lines: Sequence[str]
    """The last lines of the first readable log of `replica_logs.list_witnesses`."""
    operators: Sequence[models.Operator] | None
    """The installed operators; None: unknown."""
    now: datetime.datetime

    @property
    def status(self) -> job_status.JobStatus:
        """The job's status."""
        return self.job.status

    def find_true(self, kind: names.ConditionType) -> job_status.Condition | None:
        """Return a condition that is true."""
        return conditions.find_true(self.status, kind)

    def age(self, moment: datetime.datetime) -> str:
        """Return the time since then, such as 45s, 12m, 3h or 8d."""
        return ages.age(moment, self.now)


def describe_condition(
    condition: job_status.Condition, facts: JobSnapshot, message: str = ""
) -> Evidence:
    """Return a condition as evidence, with its message where the sentence does not have it."""
    age = facts.age(condition.last_transition_time)
    description = f"{condition.reason}: {message}" if message else condition.reason
    text = f"{condition.type} is {condition.status} for {age}: {description}"
    return Evidence(EvidenceSource.CONDITION, text)


def describe_lines(facts: JobSnapshot) -> Iterator[Evidence]:
    """Yield the last lines of the witness."""
    for line in facts.last_lines:
        yield Evidence(EvidenceSource.LOG, line)
