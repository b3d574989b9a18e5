"""The event files of TensorBoard: copied while a job writes them, or found in a local run.

Event files only grow, so each copy reads what they have gained, and a connection that breaks loses
nothing.
"""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncGenerator, Callable

from tfparallel import errors, models
from tfparallel.backends.cluster import cluster_backend
from tfparallel.results import download, files, folder, stores
from tfparallel_operator.api import load, names
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_trainer.contract import outputs

PAUSE_SECONDS = 5.0
"""Between two copies while the job runs; TensorBoard looks for news as often."""

_HOW = (
    "A job with spec.trainer writes them with its first log lines; a script writes them with"
    " output_dir of tfparallel_trainer.fit, or with keras.callbacks.TensorBoard"
)


def find(run: pathlib.Path) -> pathlib.Path:
    """Return the folder of a local run that holds its event files.

    Args:
        run: the folder of a run, or runs/JOB: its newest run.

    Raises:
        Failure: the run has written none.
    """
    root = folder.newest(run)
    written = [*root.rglob(files.EVENTS)]
    if not written:
        raise errors.Failure(f"{root}: no event files of TensorBoard are below it. {_HOW}")
    parents = {parent for file in written for parent in file.parents}
    folders = [parent for parent in parents if parent.match(outputs.TENSORBOARD)]
    return folders[0] if len(folders) == 1 else root


async def copies(
    cluster: cluster_backend.ClusterBackend,
    name: str,
    target: pathlib.Path,
    choice: stores.StoreOptions,
    say: Callable[[str], None],
) -> AsyncGenerator[models.Job, None]:
    """Copy the event files of a job until it has ended, and yield the job after each copy.

    Args:
        target: the folder that they are copied to.
        choice: what the user says of the place of the results.

    Raises:
        Failure: the job keeps nothing, its place cannot be read, or it has ended without any.
        Unavailable: the connection broke.
    """
    job = await cluster.get_job(name)
    if job.state == names.State.PENDING and job.status.progress is None:
        # A reader of its claim could bind the claim to a node that the job cannot use.
        raise errors.Failure(
            f"job {name!r} has written nothing yet: it is Pending. See why: tfparallel why {name}"
        )
    async with stores.opened(cluster, job, choice, say) as store:
        while True:
            await update(store, target, is_script=job.is_script)
            if job.is_finished and not any(target.rglob(files.EVENTS)):
                raise errors.Failure(f"job {name!r} has left no event files. {_HOW}")
            yield job
            if job.is_finished:
                return
            await asyncio.sleep(PAUSE_SECONDS)
            job = await cluster.get_job(name)


async def keep_copying(
    begin: Callable[[], AsyncGenerator[models.Job, None]],
    first: AsyncGenerator[models.Job, None],
    say: Callable[[str], None],
) -> None:
    """Copy until the job has ended or is deleted, through what interrupts it.

    Args:
        begin: opens the place again and copies.
        first: copies that go on.
    """
    current, sentence = first, ""
    while True:
        try:
            async with contextlib.aclosing(current):
                async for _ in current:
                    sentence = ""
            return
        except load.SpecError as error:
            say(f"{error}: TensorBoard shows what came until now")
            return
        except (errors.Failure, api_errors.Unavailable) as error:
            if str(error) != sentence:
                sentence = str(error)
                say(f"{sentence}. TensorBoard shows what came until now; the copy is tried again")
        await asyncio.sleep(PAUSE_SECONDS)
        current = begin()


async def update(store: files.Store, target: pathlib.Path, *, is_script: bool = False) -> None:
    """Copy what the event files have gained since the last copy.

    Raises:
        Failure: a file cannot be written.
        Unavailable: the connection broke; what has come stays.
    """
    listed = await store.list_files()
    for file in files.select(listed, files.ResultSelection.TENSORBOARD, is_script=is_script):
        if file.problem:
            continue
        download.check_path(file)
        copy = target / file.path
        size = copy.stat().st_size if copy.exists() else 0
        if size == file.size:
            continue
        begin = 0 if size > file.size else size  # a shorter file is another one
        with download.writing(target), contextlib.suppress(files.LeftOutError):
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("ab" if begin else "wb") as out:
                async for chunk in store.read(file, begin):
                    out.write(chunk)
