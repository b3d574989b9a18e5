"""A job on this machine: its folder, and the process that runs it.

The process leads a separate session and keeps running when the client ends. Everything about it is
in the folder, so that any process finds it: the manifest, what the run records, and locks that say
whether the process is alive.
"""

import asyncio
import dataclasses
import datetime
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any, Self

import yaml

from tfparallel import models
from tfparallel.backends.local import folders, locks
from tfparallel_operator.api import job_status, names, yaml_documents
from tfparallel_operator.core.status import conditions, goodput

POLL_SECONDS = 0.2
"""Seconds between two reads of a folder."""

PROCESS_ENDED = "ProcessEnded"
"""The reason of a job that failed because its process is gone."""

_SOURCE = f"{names.GROUP}/source-folder"
"""Annotation of a job: the folder of its model's files."""

_MANIFEST = "job.yaml"
_PROCESS_LOCK = "process.lock"
_OUTPUT = "run.log"


@dataclasses.dataclass(frozen=True, slots=True)
class DetachedRun:
    """The run of a job in a folder."""

    layout: folders.Folders

    @classmethod
    def create(cls, root: pathlib.Path, manifest: dict[str, Any], source: pathlib.Path) -> Self:
        """Create the folder of a new run, which `start` starts."""
        root.mkdir(parents=True)
        run = cls(folders.Folders(root))
        annotations = {**manifest["metadata"].get("annotations", {}), _SOURCE: str(source)}
        run.write({**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}})
        return run

    @property
    def _manifest(self) -> pathlib.Path:
        return self.layout.root / _MANIFEST

    @property
    def _process_lock(self) -> pathlib.Path:
        """A file that is locked from before the process starts until it has ended."""
        return self.layout.root / _PROCESS_LOCK

    @property
    def output(self) -> pathlib.Path:
        """The output of the process."""
        return self.layout.root / _OUTPUT

    @property
    def exists(self) -> bool:
        """Whether the folder contains a job; False after `forget`."""
        return self._manifest.exists()

    @property
    def is_running(self) -> bool:
        """Whether a process runs the job, started by `start` or by `tfparallel run --output`."""
        return locks.is_locked(self._process_lock) or locks.is_locked(self.layout.lock)

    @property
    def is_finished(self) -> bool:
        """Whether the job has succeeded or failed, even if its process is gone."""
        return conditions.finished(self._read_status())

    def read(self) -> models.Job:
        """Return the job as it is now.

        Raises:
            SpecError: a file of the folder cannot be read.
        """
        is_running = self.is_running  # first: a process that has ended changes nothing after it
        manifest = self._read_manifest()
        status = self._read_status()
        if not is_running and not conditions.finished(status):
            status = self._of_ended_process(manifest, status)
        metadata = manifest["metadata"]
        created = metadata.get("creationTimestamp")
        return models.Job(
            name=metadata["name"],
            namespace=metadata.get("namespace", "default"),
            uid=metadata.get("uid", ""),
            created=datetime.datetime.fromisoformat(created) if created else self._began(status),
            status=status,
            manifest=manifest,
        )

    @property
    def _written_manifest(self) -> pathlib.Path:
        """The manifest. `tfparallel run` writes it, but does not read it."""
        return self._manifest if self.exists else self.layout.manifest

    def _began(self, status: job_status.JobStatus) -> datetime.datetime:
        return status.start_time or _modified(self._written_manifest)

    def _read_manifest(self) -> dict[str, Any]:
        file = self._written_manifest
        documents = yaml_documents.parse(file.read_text(encoding="utf-8"), str(file))
        return dict(yaml_documents.find_job(documents, file.name))

    def write(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, which the next start reads."""
        folders.write_whole(self._manifest, yaml.safe_dump(manifest, sort_keys=False))

    def _read_status(self) -> job_status.JobStatus:
        try:
            return job_status.JobStatus.model_validate_json(self.layout.status.read_bytes())
        except FileNotFoundError:
            return job_status.JobStatus()

    def _of_ended_process(
        self, manifest: dict[str, Any], status: job_status.JobStatus
    ) -> job_status.JobStatus:
        """Return the status of a job that has not ended and whose process has."""
        is_suspended = manifest["spec"].get("runPolicy", {}).get("suspend", False)
        message = "resume the job to continue" if is_suspended else self._last_words()
        ended_at = _modified(self._written_manifest)
        return conditions.Stamp(ended_at, generation=0).set(
            conditions.remove(goodput.end_at_known_time(status), names.ConditionType.RUNNING),
            names.ConditionType.SUSPENDED if is_suspended else names.ConditionType.FAILED,
            True,
            names.Reason.JOB_SUSPENDED if is_suspended else PROCESS_ENDED,
            message,
        )

    def _last_words(self) -> str:
        if not self.exists:
            return "the process that ran the job has ended before the job"
        try:
            lines = self.output.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"the job's process has ended before the job: resume the job. It wrote: {last}"

    def start(self) -> bool:
        """Start the process. Return False if one is running already."""
        with self._process_lock.open("ab") as lock:
            if not locks.acquire(lock) or locks.is_locked(self.layout.lock):
                return False
            self._forget_process()
            with self.output.open("ab") as output:
                process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=[lock.fileno()],  # it keeps the lock, whatever becomes of us
                )
        threading.Thread(target=process.wait, daemon=True).start()  # leaves no zombie
        return True

    def _command(self) -> list[str]:
        root, source = self.layout.root, self._read_manifest()["metadata"]["annotations"][_SOURCE]
        run = [sys.executable, "-m", "tfparallel", "run", str(self._manifest)]
        return [*run, "--source", source, "--output", str(root)]

    def _forget_process(self) -> None:
        """Remove files of an earlier process that look like those of the new one."""
        self.layout.lock.write_bytes(b"")
        self.layout.pods.unlink(missing_ok=True)
        status = self._read_status()
        if status.attempt:
            spent = goodput.end_at_known_time(status).goodput
            fresh = job_status.JobStatus(attempt=status.attempt, goodput=spent)
            folders.write_whole(
                self.layout.status, fresh.model_dump_json(by_alias=True, exclude_none=True)
            )

    async def stop(self) -> None:
        """Ask the process to end, and wait until it has; it saves a checkpoint first."""
        asked: int | None = None
        while self.is_running:
            process = self._process()
            if process is not None and process != asked:
                os.kill(process, signal.SIGTERM)
                asked = process
            await asyncio.sleep(POLL_SECONDS)

    def _process(self) -> int | None:
        """Return the id of the process that holds the run's lock; None while it starts or ends."""
        if not locks.is_locked(self.layout.lock):
            return None
        text = self.layout.lock.read_text(encoding="utf-8").strip()
        return int(text) if text else None

    def forget(self) -> None:
        """Remove the job, and keep the results in the folder."""
        self._manifest.unlink(missing_ok=True)


def _modified(file: pathlib.Path) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.UTC)
