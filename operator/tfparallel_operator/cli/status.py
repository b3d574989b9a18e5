"""What a person sees of a job in a cluster: how far it is, what its replicas do, where it runs."""

import os
import pathlib
from collections.abc import Iterator

import pydantic
from rich import table as rich_table
from rich import text as rich_text

from tfparallel_operator.api import job_status, load
from tfparallel_operator.cli import display, placement
from tfparallel_operator.engine import client, credentials, errors, resources


def kubeconfig() -> str:
    """The file that kubectl would use: the first of $KUBECONFIG, else ~/.kube/config."""
    given = os.environ.get("KUBECONFIG", "").partition(os.pathsep)[0]
    return given or str(pathlib.Path.home() / ".kube/config")


async def fetch(name: str, namespace: str, access: credentials.Access) -> job_status.JobStatus:
    """Read the status of a job.

    Raises:
        SpecError: there is no such job, or what is there is no status.
        ApiError: the API server gives no answer.
    """
    async with client.Client(access) as api:
        try:
            body = await api.get(resources.JOBS.path(namespace, name))
        except errors.NotFound as error:
            raise load.SpecError(
                f"there is no job {name!r} in namespace {namespace!r}: correct the name, or give"
                " --namespace"
            ) from error
    try:
        return job_status.JobStatus.model_validate(body.get("status") or {})
    except pydantic.ValidationError as error:
        raise load.SpecError(f"the status of {name} cannot be read: {error}") from error


def show(name: str, status: job_status.JobStatus) -> None:
    """Print a status."""
    out, _ = display.consoles()
    out.print(f"{name}: {status.state or 'not seen by the operator yet'}", soft_wrap=True)
    rows = rich_table.Table.grid(padding=(0, 2))
    for field, value in _facts(status):
        rows.add_row(f"  {field}", rich_text.Text(value, overflow="fold"))
    out.print(rows)
    if status.replicas:
        out.print(_replicas(status))
    if status.placement is not None:
        out.print(placement.headline(status.placement), soft_wrap=True)
        out.print(placement.table(status.placement))


def _facts(status: job_status.JobStatus) -> Iterator[tuple[str, str]]:
    if status.strategy:
        yield "strategy", status.strategy
    if status.attempt:
        counts = status.restarts
        yield (
            "attempt",
            f"{status.attempt} (after {counts.failure} failures, {counts.disruption} disruptions)",
        )
        if status.restart_causes:
            causes = (f"{count} {cause}" for cause, count in status.restart_causes.items())
            yield "restarts", ", ".join(causes)
    if status.progress is not None:
        yield "progress", display.sentence(status.progress)
    for condition in status.conditions:
        if condition.status is job_status.Truth.TRUE:
            yield condition.type.lower(), f"{condition.reason}: {condition.message}"


def _replicas(status: job_status.JobStatus) -> rich_table.Table:
    shown = rich_table.Table("Role", "Wanted", "Pending", "Running", "Succeeded", "Failed", "Why")
    for role, counts in status.replicas.items():
        last = counts.last_exit
        ended = "" if last is None else f"{last.replica} ended with {last.code} {last.reason}"
        numbers = (counts.desired, counts.pending, counts.running, counts.succeeded, counts.failed)
        shown.add_row(role, *map(str, numbers), counts.reason or ended.rstrip())
    return shown
