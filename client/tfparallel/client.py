"""The client for Python, in the shape of the Kubeflow SDK's TrainerClient, with coroutines."""

import asyncio
import contextlib
import difflib
import os
import pathlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from tfparallel import backend, errors, logs, manifest, models, places
from tfparallel.diagnosis import findings, gather
from tfparallel.functions import job as function_job
from tfparallel.functions import program as programs
from tfparallel.results import fetch, files, stores
from tfparallel.terminal import wrapping
from tfparallel_operator.api import load, names
from tfparallel_operator.core.status import conditions

Callback = Callable[[models.Job], object]


class AsyncTrainerClient:
    """Trains jobs and follows them; an asynchronous context manager.

    Methods raise `load.SpecError` where an argument is wrong, with `errors.JobNotFound` among them,
    and `errors.Failure` where the place does not do what it was asked for. Both are sentences.
    """

    def __init__(self, place: places.Place | None = None) -> None:
        self._backend: backend.Backend = (place or places.Cluster()).connect()

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._backend.__aexit__(*details)

    async def train(
        self,
        source: manifest.Source | programs.Function | None = None,
        *,
        func: programs.Function | None = None,
        func_args: Mapping[str, Any] | None = None,
        packages: Sequence[str] = (),
        folder: pathlib.Path | None = None,
        **options: Unpack[manifest.Options],
    ) -> models.Job:
        """Create a job and return it at once.

        Args:
            source: the path of a model.py or a job's YAML file, a manifest, a job, or a function.
            func: a function, which each replica calls; it has to import whatever it uses.
            func_args: its arguments by name, which are data.
            packages: what pip installs in a cluster before the function is called.
            folder: where the model's files lie; None: where the source lies, or here. Of a
                function: files that go with it; None: it needs none.
            options: fields of the job, which `manifest.Options` lists.
        """
        if callable(source) and func is None:
            return await self._train_function(source, func_args or {}, packages, folder, **options)
        if func is not None and source is None:
            return await self._train_function(func, func_args or {}, packages, folder, **options)
        if source is None or callable(source) or func is not None or func_args or packages:
            raise load.SpecError(
                "train: give either a source, or func, which alone takes func_args and packages"
            )
        document, lies_in = manifest.read(source, folder, **options)
        return await self._backend.create_job(document, lies_in)

    async def _train_function(
        self,
        function: programs.Function,
        arguments: Mapping[str, Any],
        packages: Sequence[str],
        folder: pathlib.Path | None,
        **options: Unpack[manifest.Options],
    ) -> models.Job:
        if options.get("image") is None:
            options["image"] = await backend.find_trainer_image(self._backend)
        built = function_job.build(function, arguments, packages, **options)
        with tempfile.TemporaryDirectory(prefix="tfparallel-") as temporary:
            target = pathlib.Path(temporary)
            built.write(target, folder)
            return await self._backend.create_job(built.document, target, is_temporary=True)

    async def get_job(self, name: str) -> models.Job:
        """Return a job as it is now."""
        return await self._backend.get_job(name)

    async def list_jobs(self, *, everywhere: bool = False) -> Sequence[models.Job]:
        """Return all jobs by name: of the namespace, or of all namespaces."""
        return await self._backend.list_jobs(everywhere=everywhere)

    async def list_replicas(self, name: str) -> Sequence[models.Replica]:
        """Return a job's replicas, by role and number."""
        return await self._backend.list_replicas(await self.get_job(name))

    async def get_job_logs(
        self,
        name: str,
        replica: str | None = None,
        *,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncGenerator[str, None]:
        """Yield the lines of a replica.

        Args:
            name: the job's.
            replica: such as worker-1; None: the coordinator, which reports progress, or of a failed
                job the replica that failed first; "all": every replica, its name before each line.
            follow: whether to go on until the job ends, over restarts.
            tail: how many lines at most; None: all.
        """
        job = await self.get_job(name)
        everyone = replica == logs.ALL_REPLICAS
        lines = logs.read(self._backend, job, replica, follow=follow, tail=tail)
        async with contextlib.aclosing(lines):
            async for line in lines:
                yield f"[{line.replica}] {line.bare_text}" if everyone else line.text

    async def get_job_events(self, name: str) -> Sequence[models.Event]:
        """Return what was reported of a job and its replicas, oldest first."""
        return await self._backend.list_events(await self.get_job(name))

    async def diagnose_job(self, name: str) -> findings.Diagnosis:
        """Return why a job is as it is, with evidence and a remedy, as `tfparallel why` says it."""
        return await gather.diagnose_job(self._backend, name)

    def watch_job(self, name: str) -> AsyncGenerator[models.Job, None]:
        """Yield a job now and after each change, until it is deleted."""
        return self._backend.watch_job(name)

    async def watch_progress(self, name: str) -> AsyncGenerator[models.Progress, None]:
        """Yield each report of how far training is, until the job has ended."""
        latest: object = None
        async with contextlib.aclosing(self.watch_job(name)) as jobs:
            async for job in jobs:
                if (progress := job.progress) is not None and job.status.progress != latest:
                    latest = job.status.progress  # as text, in which NaN equals itself
                    yield progress
                if job.is_finished:
                    return

    async def wait_for_job_status(
        self,
        name: str,
        status: str | Iterable[str] = names.State.SUCCEEDED,
        *,
        timeout: float | None = None,
        callbacks: Iterable[Callback] = (),
    ) -> models.Job:
        """Wait until a job is in a state, and return it.

        Args:
            name: the job's.
            status: the state, or several of which one is enough.
            timeout: seconds; None: no limit.
            callbacks: called with the job, now and after each change.

        Raises:
            TimeoutError: the job is not in the state within the time.
            Failure: the job has ended in another state, or was deleted.
        """
        async with contextlib.aclosing(self.watch_until(name, status, timeout=timeout)) as jobs:
            async for job in jobs:
                for callback in callbacks:
                    callback(job)
        return job

    async def watch_until(
        self,
        name: str,
        status: str | Iterable[str] = names.State.SUCCEEDED,
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[models.Job, None]:
        """Yield a job now and after each change until it is in a state; see wait_for_job_status."""
        states = _states(status)
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        job: models.Job | None = None
        async with contextlib.aclosing(self.watch_job(name)) as jobs:
            while True:
                try:
                    async with asyncio.timeout_at(deadline):
                        job = await anext(jobs)
                except StopAsyncIteration:
                    raise errors.Failure(f"job {name!r} was deleted") from None
                except TimeoutError:
                    raise TimeoutError(_too_late(name, job, states, timeout)) from None
                yield job
                if job.state in states:
                    return
                if job.is_finished:
                    raise errors.Failure(_other_end(job, states))

    async def get_model(
        self,
        name: str,
        *,
        to: str | os.PathLike[str] | None = None,
        file: str | None = None,
        path: str | None = None,
    ) -> pathlib.Path:
        """Copy the trained model of a job to this machine, and return its path.

        Args:
            name: the job's.
            to: the folder; None: JOB-model below the working directory.
            file: of a script that leaves several models: the path of one below its results.
            path: where a script writes, as its container sees it; None: the claim that it mounts.

        Raises:
            SpecError: the script leaves several models, or none of the name.
            Failure: the job has not succeeded, keeps no model, or the place cannot be read.
        """
        job = await self.get_job(name)
        if job.state != names.State.SUCCEEDED:
            raise errors.Failure(_no_model(job))
        folder = fetch.choose_folder(name) if to is None else pathlib.Path(to)
        choice = stores.Choice(path=path)
        async with stores.opened_anywhere(self._backend, job, choice, wrapping.say) as place:
            listed = await place.list_files()
            candidates = files.select(listed, files.Part.MODEL, is_script=job.is_script)
            chosen = fetch.choose_one(candidates, file, name)
            [model] = await fetch.copy(
                place, chosen, folder, name, wrapping.say, is_script=job.is_script
            )
        return folder / model.path

    async def suspend_job(self, name: str) -> None:
        """Delete a job's replicas and keep the job: a checkpoint is saved first."""
        await self._backend.suspend_job(name, suspend=True)

    async def resume_job(self, name: str) -> None:
        """Have a suspended job run again, from its last checkpoint."""
        await self._backend.suspend_job(name, suspend=False)

    async def scale_job(self, name: str, workers: int) -> None:
        """Change the number of workers of a job that has minReplicas or maxReplicas."""
        await self._backend.scale_job(name, workers)

    async def delete_job(self, name: str, *, delete_results: bool = False) -> None:
        """Delete a job; checkpoints, models and logs stay, unless `delete_results` (local only)."""
        await self._backend.delete_job(name, delete_results=delete_results)


def _states(status: str | Iterable[str]) -> frozenset[str]:
    """Return the states.

    Raises:
        SpecError: there is no such state.
    """
    listed = [status] if isinstance(status, str) else list(status)
    known = [state.value for state in names.State]
    for state in listed:
        if state not in known:
            near = difflib.get_close_matches(state, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the states are {', '.join(known)}."
            raise load.SpecError(f"status: received {state!r}: {hint}")
    if not listed:
        raise load.SpecError(f"status: received no state: give some of {', '.join(known)}")
    return frozenset(listed)


def _no_model(job: models.Job) -> str:
    if job.is_finished:
        return f"job {job.name!r} failed, and has no model: diagnose_job({job.name!r}) says why"
    return (
        f"job {job.name!r} is {job.state}, and its model is written at the end: wait with"
        f" wait_for_job_status({job.name!r})"
    )


def _too_late(
    name: str, job: models.Job | None, states: Iterable[str], timeout: float | None
) -> str:
    now = "unknown" if job is None else job.state
    return f"job {name!r} is {now} after {timeout:g} s, not {' or '.join(sorted(states))}"


def _other_end(job: models.Job, states: Iterable[str]) -> str:
    condition = conditions.find(job.status, names.Condition(job.state))
    reason = "" if condition is None else f": {condition.reason}: {condition.message}"
    awaited = " or ".join(sorted(states))
    return f"job {job.name!r} is {job.state}, and cannot become {awaited}{reason}"
