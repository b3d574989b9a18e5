"""This machine as a backend of the client."""

import asyncio
import contextlib
import difflib
import pathlib
import shutil
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Self

from tfparallel import backend, errors, models
from tfparallel.backends.local import detached, folders, record
from tfparallel.job_source import source as sources
from tfparallel_operator import wall_clock
from tfparallel_operator.api import load, names
from tfparallel_operator.core import layout, observation, replicas

_SOURCE = "source"
"""Subfolder of a run: a copy of files that exist nowhere else."""


class LocalBackend:
    """Jobs of this machine: a process for each, and its folder below `runs`.

    The newest run of a name is the job; the folders of earlier ones keep their results.
    """

    def __init__(self, folder: pathlib.Path = folders.RUNS) -> None:
        self._folder = folder.resolve()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the backend. Jobs keep running."""

    async def create_job(
        self, document: Mapping[str, Any], folder: pathlib.Path, *, is_temporary: bool = False
    ) -> models.Job:
        """Start a job in a separate process.

        The job keeps a copy of a temporary folder, because it needs the files as long as it can be
        resumed.

        Raises:
            SpecError: the job is wrong.
            Failure: a job of its name runs.
        """
        name = sources.build(document, folder).job.metadata.name
        if any(run.is_running and not run.is_finished for run in self._runs(name)):
            raise errors.Failure(
                f"job {name!r} runs already below {self._folder}: delete it first, or choose"
                " another name"
            )
        now = wall_clock.utc_now()
        identity = {"uid": str(uuid.uuid4()), "creationTimestamp": now.isoformat()}
        manifest = {**document, "metadata": {**document["metadata"], **identity}}
        root = folders.new_folder(name, self._folder)
        source = root / _SOURCE if is_temporary else folder.resolve()
        run = detached.DetachedRun.create(root, manifest, source)
        if is_temporary:
            shutil.copytree(folder, source)
        run.start()
        return run.read()

    async def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        """Return the jobs below the folder, by name."""
        listed = (next(self._runs(name), None) for name in sorted(self._names()))
        return [run.read() for run in listed if run is not None]

    async def get_job(self, name: str) -> models.Job:
        """Return a job.

        Raises:
            JobNotFound: no job has the name; the text has near ones.
        """
        return self._find(name).read()

    def _names(self) -> Iterator[str]:
        if self._folder.is_dir():
            yield from (path.name for path in self._folder.iterdir() if path.is_dir())

    def _runs(self, name: str) -> Iterator[detached.DetachedRun]:
        """Yield the runs of a job, newest first."""
        if name in self._names():
            for root in folders.newest_first(self._folder / name):
                run = detached.DetachedRun(folders.Folders(root))
                if run.exists:
                    yield run

    def _find(self, name: str) -> detached.DetachedRun:
        run = next(self._runs(name), None)
        if run is not None:
            return run
        existing = [other for other in self._names() if next(self._runs(other), None) is not None]
        near = difflib.get_close_matches(name, existing, n=3)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "correct the name."
        raise errors.JobNotFound(f"there is no job {name!r} below {self._folder}: {hint}")

    def find_folder(self, name: str) -> pathlib.Path:
        """Return the folder of a job's run.

        Raises:
            JobNotFound: no job has the name.
        """
        return self._find(name).layout.root

    async def watch_job(self, name: str) -> AsyncGenerator[models.Job, None]:
        """Yield a job now and after each change, until it is deleted."""
        job = await self.get_job(name)
        yield job
        while True:
            await asyncio.sleep(detached.POLL_SECONDS)
            try:
                newer = await self.get_job(name)
            except (errors.JobNotFound, FileNotFoundError):
                return
            if newer.uid != job.uid:
                return
            if newer != job:
                job = newer
                yield job

    async def list_claims(self, job: models.Job) -> Sequence[models.Claim]:
        """Return no claims: here they are folders."""
        return ()

    async def list_operators(self) -> Sequence[models.Operator] | None:
        """Return None: local runs need no operator."""
        return None

    async def list_replicas(self, job: models.Job) -> Sequence[models.Replica]:
        """Return the job's replicas, by role and number."""
        run = self._find(job.name)
        is_running = run.is_running
        pods = {pod.name: pod for pod in record.read_pods(run.layout)}
        expanded = layout.build(load.read_accepted_job(job.manifest)).all_replicas
        return [
            _replica(replica, job, pods.get(replica.pod_name(job.name)), is_running=is_running)
            for replica in expanded
        ]

    async def list_events(self, job: models.Job) -> Sequence[models.Event]:
        """Return the events of the job, oldest first."""
        events = record.read_events(self._find(job.name).layout)
        return [event.for_job(job.name) for event in events]

    async def read_logs(
        self, replica: models.Replica, job: models.Job, *, follow: bool, tail: int | None
    ) -> AsyncIterator[str]:
        """Yield the lines of a replica over all its attempts, with `follow` until the run ends."""
        run = self._find(job.name)
        is_last = False
        unfinished_line = ""
        with (
            contextlib.suppress(FileNotFoundError),
            run.layout.log(replica.pod).open(encoding="utf-8", errors="replace") as log,
        ):
            while not is_last:
                is_last = not follow or not run.is_running
                *lines, unfinished_line = f"{unfinished_line}{log.read()}".split("\n")
                for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
                    yield line
                tail = None
                if not is_last:
                    await asyncio.sleep(detached.POLL_SECONDS)
            if unfinished_line:
                yield unfinished_line

    async def suspend_job(self, name: str, *, suspend: bool) -> None:
        """Suspend a job, which ends its process, or resume it."""
        run = self._find(name)
        job = run.read()
        if suspend:
            run.write(_changed(job, suspend=True))
            await run.stop()
        elif run.is_finished:
            raise load.SpecError(f"job {name!r} has {job.state.lower()}: train it again")
        elif not run.is_running:
            run.write(_changed(job, suspend=False))
            run.start()

    async def scale_job(self, name: str, workers: int) -> None:
        """Change the number of workers. A running job restarts from its last checkpoint.

        Raises:
            SpecError: the job does not let its workers change, or not to this number.
        """
        run = self._find(name)
        job = run.read()
        backend.check_elastic(job)
        scaled = _changed(job, suspend=job.state == names.State.SUSPENDED, workers=workers)
        load.parse_manifest(scaled)
        is_running = run.is_running
        if is_running:
            await run.stop()
        run.write(scaled)
        if is_running and not run.is_finished:
            run.start()

    async def delete_job(self, name: str, *, delete_results: bool = False) -> None:
        """End a job and forget its runs; the folders stay, unless `delete_results`."""
        self._find(name)
        for run in list(self._runs(name)):
            await run.stop()
            run.forget()
            if delete_results:
                shutil.rmtree(run.layout.root)


def _replica(
    replica: replicas.Replica, job: models.Job, pod: record.Pod | None, *, is_running: bool
) -> models.Replica:
    name = replica.pod_name(job.name)
    if pod is None and job.is_finished:  # cleanPodPolicy deleted it; its log is still here
        return models.Replica(
            replica.name, name, job.status.attempt, job.state, reason="ended with the job"
        )
    if pod is None:
        pending = observation.Phase.PENDING.value
        return models.Replica(replica.name, name, job.status.attempt, pending)
    is_lost = not is_running and not pod.phase.ended
    return models.Replica(
        name=replica.name,
        pod=name,
        attempt=pod.attempt,
        phase=(observation.Phase.FAILED if is_lost else pod.phase).value,
        reason="the job's process has ended" if is_lost else pod.reason,
        exit_code=pod.exit_code,
    )


def _changed(job: models.Job, *, suspend: bool, workers: int | None = None) -> dict[str, Any]:
    """Return a job's manifest with fields changed."""
    spec = dict(job.manifest["spec"])
    spec["runPolicy"] = {**spec.get("runPolicy", {}), "suspend": suspend}
    if workers is not None:
        roles = spec["tfReplicaSpecs"]
        spec["tfReplicaSpecs"] = {**roles, "Worker": {**roles["Worker"], "replicas": workers}}
    return {**job.manifest, "spec": spec}
