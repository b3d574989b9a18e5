"""One replica of a job: its role and index, and the names that follow from them."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

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
        """Return the name of the replica's pod, always the same: a repeated creation collides."""
        return f"{job_name}-{self.name}"


def group(replicas: Iterable[Replica]) -> Mapping[types.Role, frozenset[int]]:
    """Return the indices of replicas by role, with an empty set for roles without replicas."""
    grouped: dict[types.Role, set[int]] = collections.defaultdict(set)
    for replica in replicas:
        grouped[replica.role].add(replica.index)
    return collections.defaultdict(frozenset, {k: frozenset(v) for k, v in grouped.items()})
