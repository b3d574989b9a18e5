"""Processes that are slowed, and what processes send."""

import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tfparallel_operator.local import slowly, traffic

pytestmark = pytest.mark.usefixtures("processes")

_SLOWLY = (sys.executable, "-I", "-S", slowly.__file__)

_BUSY = """
import time
began, used = time.monotonic(), time.process_time()
while time.process_time() - used < 0.4:
    pass
print(time.monotonic() - began)
"""

_WAITING = "import time; began = time.monotonic(); time.sleep(1.0); print(time.monotonic() - began)"


def seconds(factor: float, code: str) -> float:
    command = (*_SLOWLY, str(factor), sys.executable, "-c", code)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return float(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell processor time")
def test_work_takes_as_many_times_longer() -> None:
    # A busy machine makes it longer still, or a bit shorter where it lets the one that slows wait.
    assert seconds(5, _BUSY) > 0.4 * 5 * 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell processor time")
def test_waiting_takes_no_longer() -> None:
    assert seconds(50, _WAITING) < 20


def test_the_exit_code_is_that_of_the_command() -> None:
    for command, code in ((["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137)):
        done = subprocess.run((*_SLOWLY, "2", *command), check=False, timeout=60)
        assert done.returncode == code
    missing = subprocess.run(
        (*_SLOWLY, "2", "./no-such-program"), check=False, capture_output=True, text=True
    )
    assert missing.returncode == slowly.NOT_FOUND
    assert missing.stderr == "cannot run './no-such-program': No such file or directory\n"


def test_a_slowed_command_hears_that_it_is_to_end() -> None:
    shell = "trap 'echo bye; exit 3' TERM; echo up; while :; do :; done"
    with subprocess.Popen(
        (*_SLOWLY, "5", "sh", "-c", shell), stdout=subprocess.PIPE, text=True
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
        (*_SLOWLY, "1.5", sys.executable, "-c", _TALKING),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"sent\n"
            meter = traffic.Meter(running.pid)
            sent = meter.read()
            assert sent is not None
            assert 101_000 <= sent.bytes <= 101_010
            assert 2 <= sent.segments < 200
            running.communicate(b"\n", timeout=30)
            assert meter.read() == sent  # of connections that have ended too
        finally:
            running.kill()


def test_the_slowing_file_needs_the_standard_library_alone() -> None:
    code = pathlib.Path(slowly.__file__).read_text()
    done = subprocess.run(
        (sys.executable, "-I", "-S", "-c", code, "1.5", "true"), check=False, timeout=60
    )
    assert done.returncode == 0
