"""What the Python client does with a backend in several calls: train, follow, wait, fetch."""

import asyncio
import contextlib
import difflib
import os
import pathlib
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Unpack

from tfparallel import backend as backends
from tfparallel import errors, manifest, models, replica_logs
from tfparallel.backend import Backend
from tfparallel.functions import job as function_job
from tfparallel.functions import program as programs
from tfparallel.results import fetch, files, stores
from tfparallel.terminal import wrapping
from tfparallel_operator.api import load, names
from tfparallel_operator.core.status import conditions


async def train_function(
    backend: Backend,
    function: programs.Function,
    arguments: Mapping[str, Any],
    packages: Sequence[str],
    folder: pathlib.Path | None,
    **options: Unpack[manifest.Options],
) -> models.Job:
    """Create a job whose replicas call a function."""
    if options.get("image") is None:
        options["image"] = await backends.find_trainer_image(backend)
    built = function_job.build(function, arguments, packages, **options)
    with tempfile.TemporaryDirectory(prefix="tfparallel-") as temporary:
        target = pathlib.Path(temporary)
        built.write(target, folder)
        return await backend.create_job(built.document, target, is_temporary=True)


async def read_logs(
    backend: Backend, name: str, replica: str | None, *, follow: bool, tail: int | None
) -> AsyncGenerator[str, None]:
    """Yield the lines of a replica, of the coordinator, or of all replicas with their names."""
    job = await backend.get_job(name)
    has_names = replica == replica_logs.ALL_REPLICAS
    lines = replica_logs.read(backend, job, replica, follow=follow, tail=tail)
    async with contextlib.aclosing(lines):
        async for line in lines:
            yield f"[{line.replica}] {line.bare_text}" if has_names else line.text


async def watch_progress(backend: Backend, name: str) -> AsyncGenerator[models.Progress, None]:
    """Yield each report of how far training is, until the job has ended."""
    latest: object = None
    async with contextlib.aclosing(backend.watch_job(name)) as jobs:
        async for job in jobs:
            if (progress := job.progress) is not None and job.status.progress != latest:
                latest = job.status.progress  # as text, in which NaN equals itself
                yield progress
            if job.is_finished:
                return


async def watch_until(
    backend: Backend, name: str, status: str | Iterable[str], timeout: float | None
) -> AsyncGenerator[models.Job, None]:
    """Yield a job now and after each change until it is in a state.

    Raises:
        SpecError: no such state exists.
        TimeoutError: the job is not in the state within the time.
        Failure: the job has ended in another state, or was deleted.
    """
    states = _parse_states(status)
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    job: models.Job | None = None
    async with contextlib.aclosing(backend.watch_job(name)) as jobs:
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


async def fetch_model(
    backend: Backend,
    name: str,
    *,
    to: str | os.PathLike[str] | None,
    file: str | None,
    path: str | None,
) -> pathlib.Path:
    """Copy the trained model of a job to this machine, and return its path.

    Raises:
        SpecError: the script leaves several models, or none of the name.
        Failure: the job has not succeeded, keeps no model, or the place cannot be read.
    """
    job = await backend.get_job(name)
    if job.state != names.State.SUCCEEDED:
        raise errors.Failure(_no_model(job))
    folder = fetch.choose_folder(name) if to is None else pathlib.Path(to)
    choice = stores.StoreOptions(path=path)
    async with stores.opened_anywhere(backend, job, choice, wrapping.say) as store:
        listed = await store.list_files()
        candidates = files.select(listed, files.ResultSelection.MODEL, is_script=job.is_script)
        chosen = fetch.choose_one(candidates, file, name)
        [model] = await fetch.copy(
            store, chosen, folder, name, wrapping.say, is_script=job.is_script
        )
    return folder / model.path


def _parse_states(status: str | Iterable[str]) -> frozenset[str]:
    """Return the states.

    Raises:
        SpecError: there is no such state.
    """
    listed = [status] if isinstance(status, str) else list(status)
    possible = [state.value for state in names.State]
    for state in listed:
        if state not in possible:
            near = difflib.get_close_matches(state, possible, n=1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"the states are {', '.join(possible)}."
            )
            raise load.SpecError(f"status: received {state!r}: {hint}")
    if not listed:
        raise load.SpecError(f"status: received no state: give some of {', '.join(possible)}")
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
    condition = conditions.find(job.status, names.ConditionType(job.state))
    reason = "" if condition is None else f": {condition.reason}: {condition.message}"
    awaited = " or ".join(sorted(states))
    return f"job {job.name!r} is {job.state}, and cannot become {awaited}{reason}"
