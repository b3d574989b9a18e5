"""Processes that are slowed, and what processes send."""

import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from testing import invocation
from tfparallel.compare import network_usage, throttle

pytestmark = pytest.mark.usefixtures("processes")

_BUSY = """
import time
while time.process_time() < 0.4:
    pass
"""

_WAITING = "import time; time.sleep(1.0)"

_OVERSLEPT_SECONDS = 10.0
"""More than a busy machine oversleeps the last pause; the next one would be the shorter for it."""


class Watched(throttle._Throttled):
    """A command that is slowed from this process, with the sums of its pauses."""

    def __init__(self, factor: float, code: str) -> None:
        super().__init__([sys.executable, "-c", code], factor)
        self.paused = self.cpu = self.cpu_in_pauses = 0.0
        self._since = 0.0

    def _send(self, number: signal.Signals) -> None:
        if number is signal.SIGSTOP:
            super()._send(number)
            # Nothing is told of a command that has ended meanwhile.
            self.cpu, self._since = max(self.cpu, self._used()), time.monotonic()
        else:
            self.paused += time.monotonic() - self._since
            self.cpu_in_pauses += max(0.0, self._used() - self.cpu)
            super()._send(number)


@pytest.fixture
def own_sigterm() -> Iterator[None]:
    """Gives the signal back that `throttle` takes."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell processor time")
@pytest.mark.usefixtures("own_sigterm")
def test_work_is_followed_by_pauses_that_are_as_many_times_longer() -> None:
    slowed = Watched(5, _BUSY)
    assert slowed.follow() == 0
    # Up to the last pause; half, because CPU time and time are not read at the same moment.
    assert slowed.paused > 0.5 * (5 - 1) * slowed.cpu > 0
    assert slowed.cpu_in_pauses < 0.5 * slowed.cpu


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell processor time")
@pytest.mark.usefixtures("own_sigterm")
def test_waiting_is_followed_by_no_pause() -> None:
    slowed = Watched(50, _WAITING)
    assert slowed.follow() == 0
    assert slowed.paused < (50 - 1) * slowed.cpu + _OVERSLEPT_SECONDS


def test_the_exit_code_is_that_of_the_command() -> None:
    for command, code in ((["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137)):
        done = subprocess.run((*throttle.build_command(2), *command), check=False, timeout=60)
        assert done.returncode == code
    missing = invocation.execute(*throttle.build_command(2), "./no-such-program")
    assert missing.returncode == throttle.NOT_FOUND
    assert missing.stderr == "cannot run './no-such-program': No such file or directory\n"


def test_a_slowed_command_hears_that_it_is_to_end() -> None:
    shell = "trap 'echo bye; exit 3' TERM; echo up; while :; do :; done"
    with subprocess.Popen(
        (*throttle.build_command(5), "sh", "-c", shell), stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "up\n"
            time.sleep(0.1)  # it is running and stopped in turn
            running.send_signal(signal.SIGTERM)
            assert running.stdout.readline() == "bye\n"
            assert running.wait(30) == 3
        finally:
            running.kill()


_TALKING = """
import socket
listening = socket.socket()
listening.bind(("127.0.0.1", 0))
listening.listen()
one = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
one.sendall(b"x" * 100_000)
rest = 100_000
while rest:
    rest -= len(other.recv(rest))
other.sendall(b"y" * 1000)
one.recv(1000, socket.MSG_WAITALL)
print("sent", flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it")
def test_what_a_process_sends_is_counted_once() -> None:
    with subprocess.Popen(
        (*throttle.build_command(1.5), sys.executable, "-c", _TALKING),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"sent\n"
            meter = network_usage.NetworkMeter(running.pid)
            sent = meter.read()
            assert sent is not None
            assert 101_000 <= sent.bytes <= 101_010
            assert 2 <= sent.segments < 200
            running.communicate(b"\n", timeout=30)
            assert meter.read() == sent  # of connections that have ended too
        finally:
            running.kill()


def test_the_slowing_file_needs_the_standard_library_alone() -> None:
    code = pathlib.Path(throttle.__file__).read_text()
    done = subprocess.run(
        (sys.executable, "-I", "-S", "-c", code, "1.5", "true"), check=False, timeout=60
    )
    assert done.returncode == 0
