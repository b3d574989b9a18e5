"""Reads the logs of replicas, over restarts."""

import asyncio
import contextlib
import dataclasses
import difflib
from collections.abc import AsyncGenerator, Sequence

from tfparallel import backend, errors, models
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits

ALL_REPLICAS = "all"
"""A name that stands for all replicas."""

_PAUSE_SECONDS = 1.0
"""Seconds between two searches for replicas that have started."""

_ENDED = ("Failed", "Terminating", "Succeeded")

_LOSSES = (names.ConditionType.FAILED, names.ConditionType.RESTARTING)
"""Conditions that a loss explains, if `status.failure` says which."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a replica's log."""

    replica: str
    text: str

    @property
    def bare_text(self) -> str:
        """The text without the replica's name, which the trainer puts before some lines."""
        return self.text.removeprefix(f"[{self.replica}] ")


def list_witnesses(job: models.Job, replicas: Sequence[models.Replica]) -> list[models.Replica]:
    """Return the replicas whose logs explain the state of a job, the most telling one first.

    After a failure, these are the failed replicas that still exist: first the cause, then the
    others in the order of their failures, and last those that lost a peer. Otherwise it is the
    coordinator, if it runs.
    """
    losses = (conditions.find(job.status, kind) for kind in _LOSSES)
    loss = next((loss for loss in losses if loss and loss.status is job_status.Truth.TRUE), None)
    if loss is None:
        usual = job.coordinator, "Running"
        return [replica for replica in replicas if (replica.name, replica.phase) == usual]
    first = "" if job.status.failure is None else job.status.failure.replica

    def has_failed(replica: models.Replica) -> bool:
        # The kubelet reports the end of a container before that of its pod.
        is_over = replica.exit_code is not None or replica.phase in _ENDED
        return bool(replica.exit_code) or (replica.pod == first and is_over)

    def order(replica: models.Replica) -> tuple[bool, bool, bool, float]:
        ended, is_consequence = replica.ended, replica.exit_code == exits.Exit.PEER_LOST
        moment = ended.timestamp() if ended else 0.0
        return replica.pod != first, is_consequence, ended is None, moment

    return sorted(filter(has_failed, replicas), key=order)


async def read_first(
    jobs: backend.Backend, job: models.Job, replicas: Sequence[models.Replica], tail: int | None
) -> AsyncGenerator[Line, None]:
    """Yield the lines of the first of these replicas whose log can be read.

    Raises:
        Failure: no log can be read.
    """
    for replica in replicas:
        begun = False
        try:
            async for text in jobs.read_logs(replica, job, follow=False, tail=tail):
                begun = True
                yield Line(replica.name, text)
        except errors.Failure:  # Such as of a pod that was evicted, or whose node is gone.
            if begun or replica is replicas[-1]:
                raise
        else:
            return


async def read(
    jobs: backend.Backend,
    job: models.Job,
    replica: str | None = None,
    *,
    follow: bool = False,
    tail: int | None = None,
) -> AsyncGenerator[Line, None]:
    """Yield the lines of a replica, or of all.

    Args:
        replica: its name, such as worker-1, or `ALL_REPLICAS`; None: the coordinator, which reports
            how far training is, or of a failed job the first that failed and has a log.
        follow: whether to go on until the job ends, over restarts.
        tail: how many lines of each replica at most; None: all.

    Raises:
        SpecError: the job has no such replica, or it has not started yet.
        Failure: a log cannot be read.
    """
    if replica is None and job.state == names.State.FAILED:
        witnesses = list_witnesses(job, await jobs.list_replicas(job))
        if witnesses:
            async for line in read_first(jobs, job, witnesses, tail):
                yield line
            return
    replica = replica or job.coordinator
    if not replica:
        raise load.SpecError(
            f"this version of tfparallel cannot read the spec of {job.name}, which says which"
            " replica coordinates. Name a replica, such as worker-0"
        )
    if follow:
        async for line in _follow(jobs, job, replica, tail):
            yield line
        return
    replicas = await jobs.list_replicas(job)
    for chosen in _choose(replicas, replica, job):
        async for text in jobs.read_logs(chosen, job, follow=False, tail=tail):
            yield Line(chosen.name, text)


def _choose(
    replicas: Sequence[models.Replica], name: str, job: models.Job
) -> Sequence[models.Replica]:
    if name == ALL_REPLICAS:
        return [replica for replica in replicas if replica.phase != "Pending"]
    replica_names = [replica.name for replica in replicas]
    if name not in replica_names:
        if job.is_finished and name in _expected(job):
            raise load.SpecError(
                f"{name} of {job.name} has no log: its pod is gone. Pods that run when a job ends"
                " are deleted unless spec.runPolicy.cleanPodPolicy is None"
            )
        if not replica_names and name in _expected(job):
            raise load.SpecError(
                f"{job.name} has no replicas yet. `tfparallel why {job.handle}` says why; -f waits"
                " for them"
            )
        near = difflib.get_close_matches(name, replica_names, n=1)
        shown = (
            f"did you mean {near[0]!r}?"
            if near
            else f"it has {', '.join(replica_names) or 'none'}."
        )
        raise load.SpecError(f"{job.name} has no replica {name!r}: {shown}")
    [replica] = [replica for replica in replicas if replica.name == name]
    if replica.phase == "Pending":
        raise load.SpecError(
            f"{name} has not started: {(replica.reason or 'it waits').rstrip('.')}."
            f" `tfparallel why {job.handle}`"
            " says more; -f waits for it"
        )
    return [replica]


def _expected(job: models.Job) -> Sequence[str]:
    """Return the names of the job's replicas, as its spec lists them."""
    return [] if job.layout is None else [replica.name for replica in job.layout.all_replicas]


async def _follow(
    jobs: backend.Backend, job: models.Job, name: str, tail: int | None
) -> AsyncGenerator[Line, None]:
    """Read every replica from its start, until the job has ended and all lines are read."""
    lines: asyncio.Queue[Line] = asyncio.Queue(maxsize=1000)
    readers: dict[tuple[str, object], asyncio.Task[None]] = {}
    try:
        is_finished = False
        while True:
            for replica in await jobs.list_replicas(job):
                key = replica.pod, replica.created
                is_chosen = name in (ALL_REPLICAS, replica.name) and replica.phase != "Pending"
                if is_chosen and key not in readers:
                    reader = _read_into(lines, jobs, job, replica, tail)
                    readers[key] = asyncio.create_task(reader)
            async for line in _drain(lines):
                yield line
            if is_finished and all(task.done() for task in readers.values()) and lines.empty():
                return
            try:
                job = await jobs.get_job(job.name)
            except errors.JobNotFound:
                return
            is_finished = job.is_finished
    finally:
        for task in readers.values():
            task.cancel()


async def _read_into(
    lines: asyncio.Queue[Line],
    jobs: backend.Backend,
    job: models.Job,
    replica: models.Replica,
    tail: int | None,
) -> None:
    # A pod that is deleted in the meantime ends its log.
    with contextlib.suppress(errors.Failure):
        async for text in jobs.read_logs(replica, job, follow=True, tail=tail):
            await lines.put(Line(replica.name, text))


async def _drain(lines: asyncio.Queue[Line]) -> AsyncGenerator[Line, None]:
    """Yield the lines that arrive until the next search."""
    deadline = asyncio.get_running_loop().time() + _PAUSE_SECONDS
    while (left := deadline - asyncio.get_running_loop().time()) > 0:
        try:
            yield await asyncio.wait_for(lines.get(), left)
        except TimeoutError:
            return
