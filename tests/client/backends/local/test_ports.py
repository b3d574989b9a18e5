"""Ports that several runs on one machine draw."""

import functools
import pathlib
import socket
import subprocess
import sys
import tempfile

import pytest

from tfparallel.backends.local import ports

_DRAW = """
import sys
from tfparallel.backends.local import ports
ports._RANGE = range(*map(int, sys.argv[1:3]))
print(*ports.allocate(3), flush=True)
input()
"""


# Below the range that other tests draw from at the same time.
SIX = range(14_000, 14_006)

pytestmark = pytest.mark.usefixtures("processes", "book")


@pytest.fixture
def book(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of the test's own: another run of the tests on this machine draws the same ports."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(ports, "_book", functools.cache(ports._book.__wrapped__))
    monkeypatch.setattr(ports, "_allocated", set())


def test_no_two_runs_get_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_RANGE", SIX)
    arguments = (sys.executable, "-c", _DRAW, str(SIX.start), str(SIX.stop))
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = set(ports.allocate(2)) | set(ports.allocate(1))
        assert ours | theirs == set(SIX)
        with pytest.raises(OSError, match="fewer than 1 ports"):
            ports.allocate(1)
        other.communicate("\n")
    # The other's are free again when it has ended.
    assert set(ports.allocate(3)) == theirs


def test_a_port_at_which_somebody_listens_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    others = range(SIX.stop, SIX.stop + 6)
    monkeypatch.setattr(ports, "_RANGE", others)
    with socket.create_server((ports.HOST, others[2])):
        assert set(ports.allocate(5)) == set(others) - {others[2]}
