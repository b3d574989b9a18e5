import asyncio
import os
import pathlib
import signal
import sys

import pytest

from testing import waiting
from testing.operator import local_jobs as jobs
from tfparallel.backends.local.process import MAX_LINE, Launch, Process

pytestmark = pytest.mark.usefixtures("processes")


class Started:
    """A process of a test, its lines, and a way to wait for one of them."""

    def __init__(self, *command: str, folder: pathlib.Path, grace: float = 60.0) -> None:
        self.mark = jobs.new_mark()
        self.lines: list[str] = []
        self._come = asyncio.Event()
        environment = {"PATH": os.environ["PATH"], jobs.MARK: self.mark}
        self.launch = Launch(command, environment, folder, grace)

    async def __aenter__(self) -> "Started":
        self.process = await Process.start(self.launch, self._take)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.process.kill()

    def _take(self, line: str) -> None:
        self.lines.append(line)
        self._come.set()

    async def wait_for_line(self, line: str) -> None:
        async with asyncio.timeout(60):
            while line not in self.lines:
                await self._come.wait()
                self._come.clear()

    async def wait(self) -> int:
        async with asyncio.timeout(60):
            return await self.process.wait()

    def alive(self) -> list[int]:
        return jobs.processes(self.mark)


@pytest.mark.parametrize(
    ("line", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)],
)
async def test_the_exit_code_is_that_of_the_command(
    tmp_path: pathlib.Path, line: str, code: int
) -> None:
    async with Started("sh", "-c", line, folder=tmp_path) as started:
        assert await started.wait() == code


async def test_ctrl_c_at_a_terminal_reaches_neither_the_command_nor_its_supervisor(
    tmp_path: pathlib.Path,
) -> None:
    """A terminal signals the processes of its session, of which only the runner is one."""
    code = "import os; print(os.getsid(0)); print(os.getsid(os.getppid()))"
    async with Started(sys.executable, "-c", code, folder=tmp_path) as started:
        assert await started.wait() == 0
    assert str(os.getsid(0)) not in started.lines


async def test_output_comes_in_lines_of_both_streams_and_without_a_last_newline(
    tmp_path: pathlib.Path,
) -> None:
    line = r"printf 'one\ntwo\rthree\r\n\303\244 \377'; printf end >&2"
    async with Started("sh", "-c", line, folder=tmp_path) as started:
        await started.wait()
    assert started.lines == ["one", "two", "three", "ä �end"]


async def test_a_line_without_an_end_is_cut_in_pieces(tmp_path: pathlib.Path) -> None:
    size = 3 * MAX_LINE + 1
    command = (sys.executable, "-c", f"print('x' * {size}, end='')")
    async with Started(*command, folder=tmp_path) as started:
        await started.wait()
    assert sum(map(len, started.lines)) == size
    assert max(map(len, started.lines)) <= MAX_LINE


async def test_a_command_that_does_not_exist_says_so(tmp_path: pathlib.Path) -> None:
    async with Started("no-such-command", folder=tmp_path) as started:
        assert await started.wait() == 127
    assert started.lines == ["cannot run 'no-such-command': No such file or directory"]


async def test_terminate_lets_the_command_end_in_order(tmp_path: pathlib.Path) -> None:
    line = "trap 'echo saving; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    async with Started("sh", "-c", line, folder=tmp_path) as started:
        await started.wait_for_line("ready")
        started.process.terminate()
        assert await started.wait() == 5
    assert "saving" in started.lines


async def test_a_command_that_ignores_sigterm_is_killed_after_its_grace(
    tmp_path: pathlib.Path,
) -> None:
    line = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    async with Started("sh", "-c", line, folder=tmp_path, grace=0.3) as started:
        await started.wait_for_line("ready")
        started.process.terminate()
        assert await started.wait() == 137
    assert started.alive() == []


async def test_what_the_command_left_behind_ends_with_it(tmp_path: pathlib.Path) -> None:
    async with Started("sh", "-c", "sleep 60 & echo left", folder=tmp_path) as started:
        assert await started.wait() == 0
    assert started.lines == ["left"]
    assert started.alive() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans a new parent")
async def test_what_went_into_another_session_ends_too(tmp_path: pathlib.Path) -> None:
    line = "import os, time; os.fork() or (os.setsid(), os.fork(), time.sleep(60)); os._exit(0)"
    async with Started(sys.executable, "-c", line, folder=tmp_path) as started:
        assert await started.wait() == 0
    assert started.alive() == []


async def test_a_killed_supervisor_takes_its_command_along(tmp_path: pathlib.Path) -> None:
    async with Started("sh", "-c", "echo ready; exec sleep 60", folder=tmp_path) as started:
        await started.wait_for_line("ready")
        [supervisor] = [pid for pid in started.alive() if _parent(pid) == os.getpid()]
        os.kill(supervisor, signal.SIGKILL)
        assert await started.wait() == 137
    assert started.alive() == []


async def test_a_supervisor_is_killed_when_its_command_has_just_begun(
    tmp_path: pathlib.Path,
) -> None:
    async with Started("sleep", "60", folder=tmp_path) as started:
        processes = await waiting.until_in_loop(
            started.alive, "two processes", when=lambda alive: len(alive) == 2, poll=0
        )
        [supervisor] = [pid for pid in processes if _parent(pid) == os.getpid()]
        os.kill(supervisor, signal.SIGKILL)
        assert await started.wait() == 137
    assert started.alive() == []


def _parent(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
