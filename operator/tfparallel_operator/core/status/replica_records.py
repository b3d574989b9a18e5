"""What the status carries of a role's replicas from decision to decision. Pure.

It cannot be counted from the pods that exist, so it never shares a type with the counts.
"""

import dataclasses
from collections.abc import Iterable

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import replicas


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """What is carried of one role; sets of indices."""

    completed: frozenset[int] = frozenset()
    """Replicas that ended with success; they stay completed when their pods vanish."""
    seen: frozenset[int] = frozenset()
    """Replicas whose pod of this attempt has been seen."""
    ignored: frozenset[int] = frozenset()
    """Replicas that were lost and that training goes on without."""
    memory_growths: int = 0
    """How often the memory that the role asks for has grown."""


def read(status: job_status.JobStatus, role: types.Role) -> Record:
    """Return what a status carries of a role."""
    carried = status.replicas.get(role.value)
    if carried is None:
        return Record()
    return Record(
        parse_indices(carried.completed),
        parse_indices(carried.seen),
        parse_indices(carried.ignored),
        carried.memory_growths,
    )


def write(status: job_status.JobStatus, role: types.Role, record: Record) -> job_status.JobStatus:
    """Return the status with what it carries of a role; the counts stay."""
    before = status.replicas.get(role.value) or job_status.ReplicaStatus()
    carried = {
        "completed": format_indices(record.completed),
        "seen": format_indices(record.seen),
        "ignored": format_indices(record.ignored),
        "memory_growths": record.memory_growths,
    }
    changed = before.model_copy(update=carried)
    return status.model_copy(update={"replicas": {**status.replicas, role.value: changed}})


def begin_attempt(status: job_status.JobStatus) -> job_status.JobStatus:
    """Forget all but how memory has grown: every replica runs again."""
    for role in types.Role:
        if role.value in status.replicas:
            growths = read(status, role).memory_growths
            status = write(status, role, Record(memory_growths=growths))
    return status


def forget_seen(
    status: job_status.JobStatus, again: Iterable[replicas.Replica]
) -> job_status.JobStatus:
    """Forget that pods of replicas that run again have been seen."""
    by_role = replicas.group(again)
    for role, members in by_role.items():
        record = read(status, role)
        status = write(status, role, dataclasses.replace(record, seen=record.seen - members))
    return status


def ignore(status: job_status.JobStatus, replica: replicas.Replica) -> job_status.JobStatus:
    """Record that the job goes on without a replica."""
    record = read(status, replica.role)
    ignored = record.ignored | {replica.index}
    return write(status, replica.role, dataclasses.replace(record, ignored=ignored))


def grow_memory(status: job_status.JobStatus, role: types.Role) -> job_status.JobStatus:
    """Record that a role asks for more memory from now on."""
    record = read(status, role)
    growths = record.memory_growths + 1
    return write(status, role, dataclasses.replace(record, memory_growths=growths))


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
