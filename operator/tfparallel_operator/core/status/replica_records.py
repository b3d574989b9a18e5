"""What the status remembers about the replicas of a role from decision to decision. Pure.

These facts cannot be counted from the existing pods, so they never share a type with the counts.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import replicas


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The record of a role, as sets of indices; `job_status.ReplicaStatus` describes the fields."""

    completed: frozenset[int]
    seen: frozenset[int]
    ignored: frozenset[int]
    memory_growths: int


def read(status: job_status.JobStatus, role: types.Role) -> Record:
    """Return the record of a role in a status."""
    carried = status.replicas.get(role.value) or job_status.ReplicaStatus()
    return Record(
        parse_indices(carried.completed),
        parse_indices(carried.seen),
        parse_indices(carried.ignored),
        carried.memory_growths,
    )


def write(
    status: job_status.JobStatus, role: types.Role, **indices: Iterable[int]
) -> job_status.JobStatus:
    """Return the status with other indices in some fields of a role's record."""
    texts = {field: format_indices(values) for field, values in indices.items()}
    return _update(status, role, texts)


def begin_attempt(status: job_status.JobStatus) -> job_status.JobStatus:
    """Forget everything except the growth of memory, because all replicas restart."""
    for role in types.Role:
        if role.value in status.replicas:
            status = write(status, role, completed=(), seen=(), ignored=())
    return status


def forget_seen(
    status: job_status.JobStatus, again: Iterable[replicas.Replica]
) -> job_status.JobStatus:
    """Forget the observed pods of replicas that restart."""
    for role, members in replicas.group(again).items():
        status = write(status, role, seen=read(status, role).seen - members)
    return status


def ignore(status: job_status.JobStatus, replica: replicas.Replica) -> job_status.JobStatus:
    """Record that the job continues without a replica."""
    ignored = read(status, replica.role).ignored | {replica.index}
    return write(status, replica.role, ignored=ignored)


def grow_memory(status: job_status.JobStatus, role: types.Role) -> job_status.JobStatus:
    """Record that a role requests more memory from now on."""
    return _update(status, role, {"memory_growths": read(status, role).memory_growths + 1})


def parse_indices(text: str) -> frozenset[int]:
    """Read ranges into the set of their indices."""
    parsed: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        parsed.update(range(int(first), int(last or first) + 1))
    return frozenset(parsed)


def format_indices(indices: Iterable[int]) -> str:
    """Write indices as ranges in ascending order."""
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)


def _update(
    status: job_status.JobStatus, role: types.Role, fields: Mapping[str, str | int]
) -> job_status.JobStatus:
    before = status.replicas.get(role.value) or job_status.ReplicaStatus()
    changed = before.model_copy(update=dict(fields))
    return status.model_copy(update={"replicas": {**status.replicas, role.value: changed}})
