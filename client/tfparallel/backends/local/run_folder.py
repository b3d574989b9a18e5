"""The folder of a local run as a backend of the client, whichever process started the run."""

import dataclasses
import pathlib
from collections.abc import Sequence

from tfparallel import models
from tfparallel.backends.local import detached, folders, local_backend


class RunFolder(local_backend.LocalBackend):
    """A backend with a single run, whatever the name of its job."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self._run = detached.DetachedRun(folders.Folders(root))

    async def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        """Return the job of the run."""
        return [await self.get_job("")]

    async def get_job(self, name: str) -> models.Job:
        """Return the job of the run."""
        job = self._run.read()
        status = job.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        manifest = {**job.manifest, "status": status}  # as a cluster has it
        return dataclasses.replace(job, manifest=manifest, folder=str(self._run.layout.root))

    def _find(self, name: str) -> detached.DetachedRun:
        return self._run
