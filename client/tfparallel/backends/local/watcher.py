"""Callbacks of a run: decisions, lines and progress."""

import dataclasses
import typing

from tfparallel_operator.api import job_status
from tfparallel_operator.core import decision


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The address and the command of a replica."""

    replica: str
    address: str
    command: str


class Watcher(typing.Protocol):
    """Receives what happens, in order; a display or a test."""

    def placed(self, placements: typing.Sequence[Placement]) -> None:
        """The replicas have their addresses, but nothing runs yet."""

    def line(self, replica: str, text: str) -> None:
        """A replica wrote a line."""

    def event(self, event: decision.JobEvent) -> None:
        """The status has changed in a way that people should know."""

    def progress(self, progress: job_status.ProgressStatus) -> None:
        """The coordinator has reported progress."""

    def split(self, placement: job_status.PlacementStatus) -> None:
        """The coordinator has reported the placement of the model for the first time."""

    def stopping(self) -> None:
        """The run was interrupted; its processes are asked to end."""
