"""The input of one decision, and the values from which decisions are built. Pure."""

import dataclasses
import datetime
import functools

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import installation, observation, view
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.status import conditions


@dataclasses.dataclass(frozen=True)
class DecisionContext:
    """The input of one decision. The methods return values and keep no state."""

    requested: Layout
    """The job with the replicas that its spec requests."""
    layout: Layout
    """The job with the replicas that it has at the moment."""
    status: job_status.JobStatus
    """The status as last written, with the fields that follow from the spec."""
    children: observation.Children
    environment: observation.Environment
    now: datetime.datetime
    settings: installation.InstallationSettings

    @property
    def job(self) -> types.TFParallelJob:
        """The job with its spec as it was written."""
        return self.layout.job

    @property
    def stamp(self) -> conditions.Stamp:
        """The time and the generation with which conditions are set."""
        return conditions.Stamp(self.now, self.job.metadata.generation)

    def view_of(self, status: job_status.JobStatus) -> view.View:
        """Sort the pods by the attempt in a status."""
        return view.build(self.layout, status, self.children.pods)

    @functools.cached_property
    def view(self) -> view.View:
        """The pods by the attempt in the status that is decided on."""
        return self.view_of(self.status)
