"""The interface of a place where jobs run: a cluster or this machine."""

import importlib.metadata
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, Self

from tfparallel import models
from tfparallel_operator.api import load
from tfparallel_operator.core import layout


class Backend(Protocol):
    """A cluster, or this machine; an asynchronous context manager."""

    async def __aenter__(self) -> Self:
        """Connect."""

    async def __aexit__(self, *_: object) -> None:
        """Close the connection; jobs keep running."""

    async def create_job(
        self, document: Mapping[str, Any], folder: pathlib.Path, *, is_temporary: bool = False
    ) -> models.Job:
        """Create a job.

        Args:
            document: its manifest.
            folder: the folder of the model's files.
            is_temporary: whether the caller removes the folder after the call.

        Raises:
            SpecError: the job is wrong.
            Failure: its name is taken, or the backend refuses it.
        """

    async def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        """Return the jobs of the namespace, or of all namespaces, by name."""

    async def get_job(self, name: str) -> models.Job:
        """Return a job.

        Raises:
            JobNotFound: no job has the name; the message suggests similar names.
        """

    def watch_job(self, name: str) -> AsyncGenerator[models.Job, None]:
        """Yield a job now and after each change, until it is deleted."""

    async def list_replicas(self, job: models.Job) -> Sequence[models.Replica]:
        """Return the replicas that exist, by role and number."""

    async def list_events(self, job: models.Job) -> Sequence[models.Event]:
        """Return the Events of a job and its objects, oldest first."""

    async def list_claims(self, job: models.Job) -> Sequence[models.Claim]:
        """Return the claims of a job that exist; none without the right to read them."""

    def read_logs(
        self, replica: models.Replica, job: models.Job, *, follow: bool, tail: int | None
    ) -> AsyncIterator[str]:
        """Yield the lines of a replica's log, with `follow` until it ends."""

    async def list_operators(self) -> Sequence[models.Operator] | None:
        """Return the installed operators; None: unknown, for example without the right to list
        them."""

    async def suspend_job(self, name: str, *, suspend: bool) -> None:
        """Suspend a job, which deletes its replicas, or resume it."""

    async def scale_job(self, name: str, workers: int) -> None:
        """Change the number of workers."""

    async def delete_job(self, name: str, *, delete_results: bool = False) -> None:
        """Delete a job and its objects, except its results, or including them.

        Raises:
            SpecError: the results are not the backend's to delete.
        """


async def find_trainer_image(jobs: Backend) -> str:
    """Return the trainer's image that the operator gives to jobs, or the usual name."""
    operators = await jobs.list_operators() or ()
    image = next((operator.trainer_image for operator in operators if operator.trainer_image), None)
    return image or f"tfparallel-trainer:{importlib.metadata.version('tfparallel')}"


def check_elastic(job: models.Job) -> None:
    """Check that the number of a job's workers may change.

    Raises:
        SpecError: it has no workers, or their number stays.
    """
    worker = "spec.tfReplicaSpecs.Worker"
    if "Worker" not in job.roles:
        raise load.SpecError(
            f"job {job.name!r} has no Worker to scale: its roles are {', '.join(job.roles)}. Add"
            f" {worker} when you create it"
        )
    if not layout.build(load.read_accepted_job(job.manifest)).is_elastic:
        raise load.SpecError(
            f"job {job.name!r}: {worker}.maxReplicas is not set, and neither is minReplicas, so"
            " the number of workers stays. Set one of them when you create the job"
        )
