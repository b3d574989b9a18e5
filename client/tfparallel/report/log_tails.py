"""The last lines of the replica that says most of why a job failed."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

from tfparallel import errors, log_lines, models, replica_logs
from tfparallel.backends.cluster import cluster_backend
from tfparallel.backends.local import folders, record
from tfparallel.report import run_records
from tfparallel_operator.api import names

LINES = 20
_BYTES = 64 * 1024
"""Of the end of a file; more than the lines have."""


def of_folder(
    job: models.Job, layout: folders.Folders, changes: Sequence[record.PodChange]
) -> run_records.Log | None:
    """Read them from the folder of a local run that failed or was cut off."""
    if job.state in (names.State.SUCCEEDED, names.State.SUSPENDED):
        return None
    replicas = list(_replicas(changes))
    usual = (replica for replica in replicas if replica.name == job.coordinator)
    for replica in itertools.chain(replica_logs.list_witnesses(job, replicas), usual):
        file = layout.log(replica.pod)
        with contextlib.suppress(OSError), file.open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
            if shown := _shown(lines):
                return run_records.Log(replica.name, shown, str(file))
    return None


async def of_job(
    cluster: cluster_backend.ClusterBackend, job: models.Job, replicas: Sequence[models.Replica]
) -> run_records.Log | None:
    """Read them from a pod of a job that failed, if it is still there."""
    witnesses = (
        replica_logs.list_witnesses(job, replicas) if job.state == names.State.FAILED else []
    )
    if not witnesses:
        return None
    try:
        read = [line async for line in replica_logs.read_first(cluster, job, witnesses, 2 * LINES)]
    except errors.Failure:
        return None
    shown = _shown([line.text for line in read])
    replica = read[0].replica if read else ""
    command = f"tfparallel logs {job.name} {replica}"
    return run_records.Log(replica, shown, command) if shown else None


def _replicas(changes: Iterable[record.PodChange]) -> Iterator[models.Replica]:
    newest = {change.name: change for change in changes}
    for change in newest.values():
        yield models.Replica(
            name=change.replica,
            pod=change.name,
            attempt=change.attempt,
            phase=change.phase.value,
            reason=change.reason,
            exit_code=change.exit_code,
            ended=change.time if change.phase.ended else None,
        )


def _shown(lines: Iterable[str]) -> Sequence[str]:
    """Return the last lines, without those that each process begins with."""
    printed = [line for line in lines if not log_lines.is_start_of_tensorflow(line)]
    return printed[-LINES:]
