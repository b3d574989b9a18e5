"""The program TensorBoard, which shows a folder on this machine alone."""

import asyncio
import collections
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator

from tfparallel import errors

_PROGRAM = "tensorboard"
_HOST = "127.0.0.1"
"""Event files describe a job, so only this machine reaches the program."""

_RELOAD_SECONDS = 5
_END_SECONDS = 5.0
"""How long the program may take to end."""

_ADDRESS = re.compile(r"http://\S+")
_SHOWN_LINES = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Board:
    """A TensorBoard that runs."""

    address: str
    process: asyncio.subprocess.Process


def find() -> str:
    """Return the path of the program: next to this Python, or on the PATH.

    Raises:
        Failure: it is not installed.
    """
    folders = (str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    program = shutil.which(_PROGRAM, path=os.pathsep.join(folders))
    if program is None:
        raise errors.Failure(
            "TensorBoard is not installed: run pip install tensorboard, or with pipx"
            " pipx inject tfparallel tensorboard"
        )
    return program


@contextlib.asynccontextmanager
async def started(folder: pathlib.Path, port: int | None) -> AsyncIterator[Board]:
    """Start the program, and end it.

    Args:
        folder: what it shows.
        port: that it listens on; None: 6006, or the next that is free.

    Raises:
        Failure: it does not start.
    """
    if port:
        _check_free(port)
    arguments = ["--logdir", str(folder), "--host", _HOST, "--reload_interval"]
    arguments += [str(_RELOAD_SECONDS), *([] if port is None else ["--port", str(port)])]
    process = await asyncio.create_subprocess_exec(
        find(),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    if process.stderr is None:
        raise RuntimeError("the program has no standard error")
    drain = None
    try:
        address = await _read_address(process.stderr)
        drain = asyncio.create_task(_drain(process.stderr))
        yield Board(address, process)
    finally:
        await _end(process)
        if drain is not None:
            drain.cancel()


def _check_free(port: int) -> None:
    """See that the program can listen on a port, which it finds out itself after many seconds.

    Raises:
        Failure: the port is in use, or not this user's to listen on.
    """
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((_HOST, port))
        except OSError as error:
            raise errors.Failure(
                f"--port {port}: TensorBoard cannot listen on this port of the machine:"
                f" {error.strerror}. Choose another, or leave out --port for one that is free"
            ) from error


async def _read_address(lines: asyncio.StreamReader) -> str:
    """Return the address that the program writes once it listens."""
    last: collections.deque[str] = collections.deque(maxlen=_SHOWN_LINES)
    async for line in lines:
        text = line.decode(errors="replace").strip()
        if text.startswith("TensorBoard ") and (address := _ADDRESS.search(text)):
            return address.group()
        if text:
            last.append(text)
    raise errors.Failure(
        f"TensorBoard does not start: {' '.join(last) or 'it wrote nothing'}. Run the command"
        " again, with another --port if the port is in use"
    )


async def _drain(lines: asyncio.StreamReader) -> None:
    """Read on, so that the program is never stopped by a full pipe."""
    while await lines.read(1 << 16):
        pass


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
