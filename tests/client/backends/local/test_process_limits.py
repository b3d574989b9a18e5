"""What is said of a process that aborts under a limit of its shell."""

import resource
import subprocess
import sys

import pytest

from tfparallel.backends.local import process_limits

SCRIPT = """
import resource
from tfparallel.backends.local import process_limits
resource.setrlimit({kind}, ({limit}, resource.getrlimit({kind})[1]))
print(process_limits.describe({code}, 3))
"""


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("kind", "limit", "code", "sentence"),
    [
        ("resource.RLIMIT_AS", 3 * 2**30, 134, "ulimit -v gives each process 3.0 GiB"),
        ("resource.RLIMIT_AS", 3 * 2**30, 1, ""),
        ("resource.RLIMIT_AS", 64 * 2**30, 134, ""),
        ("resource.RLIMIT_NPROC", 200, 134, "ulimit -u gives you 200 processes and threads"),
    ],
)
def test_a_limit_is_named_where_a_program_cannot(
    kind: str, limit: int, code: int, sentence: str
) -> None:
    script = SCRIPT.format(kind=kind, limit=limit, code=code)
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert printed.startswith(sentence)
    assert bool(printed.strip()) == bool(sentence)


def test_without_limits_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert process_limits.describe(134, 100) == ""
