"""Callbacks of a run: decisions, lines and progress."""

import dataclasses
import typing

from tfparallel_operator.api import job_status
from tfparallel_operator.core import decision


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where one replica runs, and what."""

    replica: str
    address: str
    command: str


class Watcher(typing.Protocol):
    """Receives what happens, in order; a display or a test."""

    def placed(self, placements: typing.Sequence[Placement]) -> None:
        """The replicas have got their addresses; nothing runs yet."""

    def line(self, replica: str, text: str) -> None:
        """A replica wrote a line."""

    def event(self, event: decision.Event) -> None:
        """A decision was written that people should know of."""

    def progress(self, progress: job_status.ProgressStatus) -> None:
        """The coordinator reported how far training has come."""

    def split(self, placement: job_status.PlacementStatus) -> None:
        """The coordinator reported where the parts of the model are, for the first time."""

    def stopping(self) -> None:
        """The run was interrupted; its processes are asked to end."""
