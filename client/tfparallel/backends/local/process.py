"""The process of a pod: starts it under a supervisor, reads its lines, and ends it reliably."""

import asyncio
import codecs
import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from tfparallel.backends.local import supervisor

MAX_LINE = 8192
"""Maximum length of a line. A longer one is cut into pieces, so that it cannot fill the memory."""

_DRAIN_SECONDS = 2.0
_ID_SECONDS = 30.0
_LINE_ENDS = re.compile(r"\r\n|\n|\r")

LineSink = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """A command, its working directory, and its grace period."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: pathlib.Path
    grace_seconds: float


class Process:
    """A command that runs under a supervisor, from `start` on."""

    def __init__(
        self,
        running: asyncio.subprocess.Process,
        control: socket.socket,
        reading: "asyncio.Task[None]",
    ) -> None:
        self._running = running
        self._control = control
        self._reading = reading

    @classmethod
    async def start(cls, launch: Launch, sink: LineSink) -> "Process":
        """Start the command; every line of its output goes to the sink."""
        ours, theirs = socket.socketpair()
        output, writing = os.pipe()
        try:
            running = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", supervisor.__file__),
                *(str(theirs.fileno()), str(launch.grace_seconds), *launch.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                cwd=launch.folder,
                env=dict(launch.environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(writing)
        return cls(running, ours, asyncio.create_task(_read_lines(output, sink)))

    @property
    def command_id(self) -> int | None:
        """The process id of the command; None: it has not started, or has ended."""
        with contextlib.suppress(OSError, ValueError):
            # It stays on the socket, for whoever has to end a command without a supervisor.
            return int(self._control.recv(32, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        return None

    def terminate(self) -> None:
        """Ask the command to end, and kill it after its grace period."""
        self._order(supervisor.TERMINATE)

    def interrupt(self) -> None:
        """Ask an agent to end its run and to stay, and kill it if it does not respond in time."""
        self._order(supervisor.INTERRUPT)

    def confirm_response(self) -> None:
        """Let an agent live that has responded to an interruption."""
        self._order(supervisor.RESPONDED)

    def kill(self) -> None:
        """Kill the command and all processes that it started."""
        self._order(supervisor.KILL)

    async def wait(self) -> int:
        """Wait for the end of the command and of its output; return its exit code."""
        code = await self._running.wait()
        if code < 0:
            # Somebody killed the supervisor itself: the command lost its guard, not its life.
            self._kill_orphan()
            code = 128 - code
        # What the command started and put into another session may hold the output open for ever.
        await asyncio.wait([self._reading], timeout=_DRAIN_SECONDS)
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        self._control.close()
        return code

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError):  # the command has ended by itself
            self._control.send(order)

    def _kill_orphan(self) -> None:
        # The id comes from the command itself, at the latest now; without a command the file ends.
        self._control.settimeout(_ID_SECONDS)
        with contextlib.suppress(OSError, ValueError):
            os.killpg(int(self._control.recv(32)), signal.SIGKILL)


async def _read_lines(output: int, sink: LineSink) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(output, "rb", buffering=0)
    )
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    unfinished_line = ""
    try:
        while chunk := await reader.read(65_536):
            *lines, unfinished_line = _LINE_ENDS.split(unfinished_line + decoder.decode(chunk))
            for line in lines:
                sink(line)
            while len(unfinished_line) > MAX_LINE:
                sink(unfinished_line[:MAX_LINE])
                unfinished_line = unfinished_line[MAX_LINE:]
        if unfinished_line:
            sink(unfinished_line)
    finally:
        transport.close()
