"""`tfparallel tensorboard`."""

import asyncio
import contextlib
import functools
import pathlib
import signal
import tempfile
from collections.abc import Awaitable, Iterator

import click

from tfparallel import errors
from tfparallel.backends.cluster import access, cluster_backend, refusals
from tfparallel.cli import options
from tfparallel.results import event_files, files, folder, stores
from tfparallel.terminal import tensorboard_process, wrapping
from tfparallel_trainer.contract import outputs


@click.command("tensorboard")
@options.job_or_folder
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of TensorBoard on this machine.  [default: 6006, or the next that is free]",
)
@click.option(
    "--to",
    "target",
    type=options.FILE,
    metavar="DIR",
    help="Keep the event files of a JOB there.  [default: a temporary folder]",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="Image of the pod that reads the claim.  [default: that of the job]",
)
@options.results
@options.cluster
def command(
    name: str,
    *,
    port: int | None,
    target: pathlib.Path | None,
    image: str | None,
    path: str | None,
    choice: access.ConnectionOptions,
) -> None:
    """Show the curves of a job in TensorBoard, until Ctrl-C.

    The event files of a JOB come from the claim or the bucket that keeps its checkpoints, again
    every few seconds while it runs. Those of a script come from the claim that it mounts, those of
    a local run from its FOLDER, such as runs/JOB. TensorBoard listens on this machine alone.

    Exit status: 0 ended by Ctrl-C, 1 no event files, or TensorBoard does not start, 2 no such job.
    """
    tensorboard_process.find()
    if folder.is_run(name):
        asyncio.run(_show(event_files.find(pathlib.Path(name)), port, asyncio.Event().wait()))
        return

    pod_choice = stores.StoreOptions(image, path)

    async def act(cluster: cluster_backend.ClusterBackend) -> None:
        with _kept(target) as to:
            begin = functools.partial(
                event_files.copies, cluster, name, to, pod_choice, wrapping.say
            )
            first = begin()
            async with contextlib.aclosing(first):
                with refusals.explained(cluster.context):
                    job = await anext(first)
                if not any(to.rglob(files.EVENTS)):
                    wrapping.say(
                        f"{name} has written no event files yet: TensorBoard shows them later"
                    )
                copying = event_files.keep_copying(begin, first, wrapping.say)
                await _show(to if job.is_script else to / outputs.TENSORBOARD, port, copying)

    options.on_cluster(choice, act)


@contextlib.contextmanager
def _kept(target: pathlib.Path | None) -> Iterator[pathlib.Path]:
    if target is not None:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="tfparallel-") as temporary:
        yield pathlib.Path(temporary)


async def _show(shown: pathlib.Path, port: int | None, copying: Awaitable[object]) -> None:
    """Show a folder until a signal or TensorBoard itself ends it."""
    copies = asyncio.ensure_future(copying)
    try:
        async with tensorboard_process.started(shown, port) as board:
            click.echo(f"TensorBoard: {board.address} (Ctrl-C ends it)")
            if await _wait(board):
                raise errors.Failure(
                    f"TensorBoard ended with exit code {board.process.returncode}. Run the command"
                    " again"
                )
    finally:
        copies.cancel()
        await asyncio.gather(copies, return_exceptions=True)


async def _wait(board: tensorboard_process.Board) -> bool:
    """Wait for a signal or the end of the program; return whether it failed.

    The terminal sends Ctrl-C to the program too, which then ends with 0.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(stop.wait()), asyncio.create_task(board.process.wait())]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return not stop.is_set() and board.process.returncode != 0
