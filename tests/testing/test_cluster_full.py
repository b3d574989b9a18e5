"""The full cluster runs containers that find each other, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testing import waiting
from testing.cluster import cgroups, folders, lifecycle, state

START_LIMIT_SECONDS = 250.0
UP_THAT_STANDS_STILL = """
import signal, sys
from testing.cluster import __main__, kwok
kwok.ready_nodes = lambda cluster: signal.pause()
sys.exit(__main__.main(sys.argv[1:]))
"""
NODE_FOLDERS = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/log/pods",
    "/var/log/containers",
    "/run/containerd",
    "/opt/containerd",
    "/usr/libexec/kubernetes",
)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and containers need root"),
]


def traces() -> dict[str, set[str]]:
    """Everything of the machine's own that a cluster could leave changed."""

    def lines(*command: str) -> set[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return set(done.stdout.splitlines())

    sysctls = (Path("/proc/sys/vm/overcommit_memory"), Path("/proc/sys/kernel/panic"))
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    of_builds = f"{folders.cache()}/images/"  # Builds of images mount their layers.
    return {
        "namespaces": lines("ip", "netns"),
        "interfaces": {line.split()[1] for line in lines("ip", "-oneline", "link")},
        "routes": lines("ip", "route"),
        "rules": {line for line in lines("iptables-save") if not line.startswith(("#", ":"))},
        "mounts": {mount for mount in mounts if of_builds not in mount},
        "control groups": {str(path) for path in cgroups.ROOT.glob("*/tfparallel-*")},
        "settings": {path.read_text(encoding="ascii") for path in sysctls},
        "folders": {path for path in NODE_FOLDERS if Path(path).exists()},
    }


def added(before: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is there now and was not before; what others removed meanwhile is their affair."""
    return {kind: more for kind, now in traces().items() if (more := now - before[kind])}


def members(directory: Path) -> set[str]:
    """The command lines of living processes that name the cluster's folder or are in its pods.

    Those of other clusters come and go meanwhile.
    """
    pods = f"/{cgroups.branch(directory)}/"
    commands = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
            groups = (process / "cgroup").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(directory) in command or pods in groups:
            commands.add(f"{process.name} {command.decode(errors='replace')}")
    return commands


@pytest.mark.usefixtures("cluster_programs")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL]
)
def test_interrupted_up_can_be_cleared_away(tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "broken"
    before = traces()
    where = ["--name", "broken", "--dir", str(folder)]
    command = [sys.executable, "-c", UP_THAT_STANDS_STILL, "up", "--mode", "full", *where]
    with subprocess.Popen(command, cwd=folders.SOURCE.parents[1], start_new_session=True) as up:
        waiting.until(
            lambda: "kubelet" in started(folder),
            "the start of the kubelet",
            START_LIMIT_SECONDS,
            in_vain=lambda: "" if up.poll() is None else f"It ended with {up.poll()}",
        )
        up.send_signal(number)
    left = folder.exists()
    downed = lifecycle.down("broken", folder)
    killed = number == signal.SIGKILL  # else it cleaned up after itself
    assert (left, downed) == (killed, killed)
    assert not folder.exists()
    # What a killed command has just started ends by itself.
    waiting.until(lambda: members(folder), "its end", when=lambda left: not left)
    assert not added(before)


def started(folder: Path) -> set[str]:
    cluster_state = state.load(folder)
    return set() if cluster_state is None else {record.name for record in cluster_state.processes}
