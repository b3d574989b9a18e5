"""One replica of a job: its role and index, and the names that follow from them."""

import dataclasses

from tfparallel_operator.api import types


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a job, named by role and index."""

    role: types.Role
    index: int

    @property
    def name(self) -> str:
        """The replica's name within its job, such as worker-3."""
        return f"{self.role.label}-{self.index}"

    def pod_name(self, job_name: str) -> str:
        """Return the name of the replica's pod, always the same: a repeated create collides."""
        return f"{job_name}-{self.name}"
