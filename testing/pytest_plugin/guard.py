"""Fails a unit test that starts a process, listens for strangers or imports TensorFlow.

Python raises audit events for all of this. The hook stays for the life of the process, because
none can be removed; it looks at nothing while no unit test runs.
"""

import ipaddress
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import util
from types import MappingProxyType
from typing import Any

import pytest

from testing.pytest_plugin import graph, tiers

PROCESS_EVENTS: Mapping[str, str] = MappingProxyType(
    {
        "subprocess.Popen": "starts a process",
        "os.fork": "forks",
        "os.forkpty": "forks",
        "os.posix_spawn": "starts a process",
        "os.system": "starts a process",
        "multiprocessing.spawn": "starts a process",
    }
)
FONT_SEARCH = "fc-list"
"""matplotlib starts it for the first picture on a machine, and then keeps what it printed."""
PROCESS_ADVICE = (
    "ask for the fixture `runs` (trainer processes), `processes` (other programs) or a cluster's"
)
TENSORFLOW_ADVICE = (
    "import it at the top of the module, or ask for `runs`, so that the test is of the tier process"
)
BIND_ADVICE = "bind to 127.0.0.1, or ask for the fixture `processes`"


class Guard:
    """Watches one test at a time."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.offences: list[str] = []

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note what the running test does that a unit test must not."""
        if self.test is None:
            return
        offence = find_offence(event, arguments)
        if offence is not None:
            self.offences.append(offence)  # to raise here could leave an event loop waiting

    def sentence(self) -> str:
        """What the test did first, and what to do about it."""
        return f"{self.test} is of the unit tier, but {self.offences[0]}."


def find_offence(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What is wrong with an audit event in a unit test, and what to do; None if nothing is."""
    if event in PROCESS_EVENTS and arguments[:1] != (FONT_SEARCH,):
        return f"{PROCESS_EVENTS[event]} ({arguments[0] if arguments else event}): {PROCESS_ADVICE}"
    if event == "import" and arguments[0] in graph.TENSORFLOW:
        return f"imports {arguments[0]}: {TENSORFLOW_ADVICE}"
    if event == "socket.bind" and _is_open_to_others(arguments[1]):
        return f"listens on {arguments[1]}: {BIND_ADVICE}"
    return None


def _is_open_to_others(address: object) -> bool:
    """Whether this is the address of an interface other than loopback."""
    if not isinstance(address, tuple):
        return False  # of a Unix socket
    host = address[0]
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


_guard = Guard()


def pytest_configure() -> None:
    """Install the hook once in this process."""
    if not hasattr(sys, "_tfparallel_guard"):
        sys._tfparallel_guard = _guard  # type: ignore[attr-defined]
        sys.addaudithook(_guard.hook)
        _announce_spawning()


def _announce_spawning() -> None:
    """Let multiprocessing raise an event too: it starts processes below `subprocess`."""
    start = util.spawnv_passfds

    def announce_and_start(path: bytes, *arguments: Any) -> int:
        sys.audit("multiprocessing.spawn", path)
        return start(path, *arguments)

    util.spawnv_passfds = announce_and_start  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _guarded(item))


def _guarded(item: pytest.Item) -> Iterator[None]:
    if tiers.item_tier(item) is not tiers.Tier.UNIT:
        return (yield)
    _guard.test, _guard.offences = item.name, []
    try:
        result = yield
        if _guard.offences:
            pytest.fail(_guard.sentence(), pytrace=False)
        return result
    finally:
        _guard.test = None
