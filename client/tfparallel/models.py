"""Jobs, replicas and events as the client returns them."""

import dataclasses
import datetime
import functools
from collections.abc import Mapping
from typing import Any, Self

from tfparallel import job_html
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import layout, pending_reasons
from tfparallel_operator.core.layout import Layout

Claim = pending_reasons.Claim
Event = pending_reasons.Event


UNREADABLE = "Unreadable"
"""The state of a job whose status this version cannot read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far training has come, with numbers to plot: a status has them as text."""

    step: int
    """Optimizer steps made."""
    total_steps: int | None
    """Optimizer steps to make in all; None: unknown."""
    epoch: int
    """Epochs completed."""
    percent: int | None
    """Share of the steps that are made."""
    metrics: Mapping[str, float]
    """The latest loss and metrics; those of the evaluation begin with val_. Some may be NaN."""
    examples_per_second: float | None
    """Training examples a second over all replicas."""
    input_wait: float | None
    """Share of its time that the coordinator waits for its input."""
    eta: str | None
    """Time to go, such as 1h2m or 45s."""
    updated: datetime.datetime | None
    """When the report arrived."""

    @classmethod
    def parse(cls, status: job_status.ProgressStatus) -> Self:
        """Read a report; what is not a number is left out."""
        metrics = {name: _parse_number(text) for name, text in status.metrics.items()}
        return cls(
            step=status.step,
            total_steps=status.total_steps,
            epoch=status.epoch,
            percent=status.percent,
            metrics={name: value for name, value in metrics.items() if value is not None},
            examples_per_second=_parse_number(status.examples_per_second),
            input_wait=_parse_number(status.input_wait),
            eta=status.eta,
            updated=status.last_update_time,
        )


def _parse_number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


@dataclasses.dataclass(frozen=True, repr=False)
class Job:
    """A TFParallelJob at one moment."""

    name: str
    namespace: str
    uid: str
    created: datetime.datetime
    status: job_status.JobStatus
    manifest: Mapping[str, Any]
    """The whole object, as JSON."""
    problem: str = ""
    """Why its status cannot be read, and is empty here; empty: it can."""
    folder: str = ""
    """Of a local run, as verbs take it; empty: verbs take the name."""

    @property
    def handle(self) -> str:
        """What the verbs of the command take for it."""
        return self.folder or self.name

    @property
    def state(self) -> str:
        """One word: Pending, Running, Restarting, Suspended, Succeeded, Failed or Unreadable."""
        return UNREADABLE if self.problem else str(self.status.state or names.State.PENDING)

    @property
    def progress(self) -> Progress | None:
        """How far training has come; None: no step has been reported."""
        progress = self.status.progress
        return None if progress is None else Progress.parse(progress)

    @property
    def is_finished(self) -> bool:
        """Whether it succeeded or failed, for good."""
        return self.state in (names.State.SUCCEEDED, names.State.FAILED)

    @property
    def other_manager(self) -> str:
        """The controller that spec.managedBy leaves it to; empty: the operator."""
        spec = self.manifest.get("spec", {})
        manager = spec.get("managedBy") or spec.get("runPolicy", {}).get("managedBy")
        return "" if manager in (None, names.CONTROLLER) else str(manager)

    @property
    def is_script(self) -> bool:
        """Whether its containers run a script of the user's, not the shipped trainer."""
        return not self.manifest.get("spec", {}).get("trainer")

    @property
    def roles(self) -> Mapping[str, Any]:
        """The replica specs by role, as the manifest has them."""
        specs: Mapping[str, Any] = self.manifest.get("spec", {}).get("tfReplicaSpecs", {})
        return specs

    @functools.cached_property  # Its manifest is parsed, and large jobs have many replicas.
    def layout(self) -> Layout | None:
        """The replicas that its spec asks for; None: this version cannot read the spec."""
        document = {key: value for key, value in self.manifest.items() if key != "status"}
        try:
            return layout.build(load.read_accepted_job(document))
        except load.SpecError:
            return None

    @property
    def coordinator(self) -> str:
        """The replica that reports how far training is; empty: its layout is unknown."""
        return "" if self.layout is None else self.layout.coordinator.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {job_html.render_line(self.name, self.state, self.status)}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows of the job."""
        return job_html.render(self.name, self.state, self.status, self.problem)


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One pod of a job, or one process of a local run."""

    name: str
    """Of the replica within its job, such as worker-1."""
    pod: str
    attempt: int
    phase: str
    """Pending, Running, Succeeded or Failed; Terminating where it is being deleted."""
    node: str = ""
    reason: str = ""
    """Why it waits or how it ended, in the words of scheduler, kubelet or trainer."""
    exit_code: int | None = None
    created: datetime.datetime | None = None
    started: datetime.datetime | None = None
    """When the container that trains started; None: it has not."""
    ended: datetime.datetime | None = None
    """When that container ended; None: it has not."""
    memory_limit: str = ""
    """Of the container that trains, such as 2Gi; empty: it has none."""
    log_container: str = names.CONTAINER
    """Whose log says what happened: the container that trains, or an init container that failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """An installation of the operator."""

    namespace: str
    name: str
    """Of its Deployment."""
    replicas: int
    ready: int
    watched: tuple[str, ...]
    """The namespaces whose jobs it runs; empty: all."""
    trainer_image: str = ""
    """Of the replicas that have no template; empty: unknown."""
    version: str = ""
    """Such as 0.1.0; empty: unknown."""
