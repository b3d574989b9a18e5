"""The full cluster by kind, where a Docker engine answers.

The machines this project is developed on have no Docker engine, so this module has not been run
against one: it follows kind's documented commands. The node image that kind pulls is its own.
"""

import shutil
import subprocess
from pathlib import Path

from testing.cluster import binaries, console, state

START_LIMIT = "300s"
PREFIX = "tfparallel-"


def docker_answers() -> bool:
    """Whether there is a Docker engine to run kind's nodes."""
    if shutil.which("docker") is None:
        return False
    asked = subprocess.run(["docker", "info"], capture_output=True, timeout=30, check=False)
    return asked.returncode == 0


def up(name: str, kubeconfig: Path) -> None:
    """Create the cluster; returns when its node takes pods."""
    if not docker_answers():
        raise console.ClusterError("kind needs a Docker engine, and none answers here.")
    binaries.ensure([*binaries.CLIENTS, "kind"])
    where = [f"--name={PREFIX}{name}", f"--kubeconfig={kubeconfig}"]
    _kind("create", "cluster", *where, f"--wait={START_LIMIT}")


def load_image(name: str, archive: Path) -> None:
    """Bring a docker-archive to the node."""
    _kind("load", "image-archive", str(archive), f"--name={PREFIX}{name}")


def down(cluster_state: state.ClusterState, directory: Path) -> None:
    """Delete the cluster; kind succeeds when there is none."""
    kubeconfig = directory / "kubeconfig"
    _kind("delete", "cluster", f"--name={PREFIX}{cluster_state.name}", f"--kubeconfig={kubeconfig}")


def _kind(*arguments: str) -> None:
    console.say(f"kind {arguments[0]} {arguments[1]}")
    done = subprocess.run(
        [str(binaries.path("kind")), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise console.ClusterError(f"kind {arguments[0]} failed: {done.stderr.strip()}")
