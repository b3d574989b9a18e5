"""A registry of images that wants a password, for a full cluster and for the machine around it.

It listens on loopback inside the cluster. A forwarder on the same port of this machine's loopback
leads there, so that an image has one name for who pushes it and for the node that pulls it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testing import waiting
from testing.cluster import binaries, console, controlplane, folders, handle, netns, process, state

MODULE = "registry"
USER, PASSWORD = "team", "secret"
_HASH = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW"
_CONFIGURATION = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "{address}"}}
auth: {{htpasswd: {{realm: tests, path: {folder}/users}}}}
"""


@dataclass(frozen=True)
class Registry:
    """A running registry."""

    address: str

    def answers(self) -> bool:
        """Whether it takes connections and speaks."""
        host, _, port = self.address.partition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(b"GET /v2/ HTTP/1.0\r\n\r\n")
                return b" 401 " in connection.recv(64)
        except OSError:
            return False


@contextlib.contextmanager
def running(cluster: handle.Cluster, folder: Path) -> Iterator[Registry]:
    """Meanwhile a registry keeps its images in the folder."""
    binaries.ensure([MODULE])
    cluster_state = state.load(cluster.directory)
    if cluster_state is None:
        raise console.ClusterError(f"The cluster {cluster.name} does not run.")
    enter = netns.enter_network(cluster_state)
    with socket.create_server((controlplane.LOOPBACK, 0)) as listener:
        port = int(listener.getsockname()[1])
        registry = Registry(f"{controlplane.LOOPBACK}:{port}")
        configuration = folder / "registry.yaml"
        configuration.write_text(
            _CONFIGURATION.format(folder=folder, address=registry.address), encoding="utf-8"
        )
        (folder / "users").write_text(f"{USER}:{_HASH}\n", encoding="utf-8")
        forward = [sys.executable, "-I", str(folders.SOURCE / "forwarder.py")]
        target = [str(listener.fileno()), controlplane.LOOPBACK, str(port)]
        serve = [str(binaries.path(MODULE)), "serve", str(configuration)]
        with (
            _started([*enter, *serve], folder / "registry.log"),
            _started([*enter, *forward, *target], folder / "forwarder.log", listener.fileno()),
        ):
            waiting.until(registry.answers, "the registry")
            yield registry


@contextlib.contextmanager
def _started(command: Sequence[str], log: Path, *keep_open: int) -> Iterator[None]:
    """Meanwhile a program runs, with what it starts."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=process.environment(),
            start_new_session=True,  # entering a cluster's processes takes a second process
            pass_fds=keep_open,
        ) as program,
    ):
        try:
            yield
        finally:
            os.killpg(program.pid, signal.SIGTERM)
