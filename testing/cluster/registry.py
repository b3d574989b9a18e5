"""A registry that asks for a password: for this machine only, or also for a full cluster.

The latter listens on loopback inside the cluster. A forwarder on the same port of this machine's
loopback connects to it, so that an image has the same name for the client that pushes it and for
the node that pulls it.
"""

import contextlib
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testing import waiting
from testing.cluster import binaries, controlplane, folders, handle, process

MODULE = "registry"
USER, PASSWORD = "team", "secret"
_HASH = "$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW"
_CONFIGURATION = """\
version: 0.1
storage: {{filesystem: {{rootdirectory: {folder}/images}}}}
http: {{addr: "{address}"}}
auth: {{htpasswd: {{realm: tests, path: {folder}/users}}}}
"""
_ADDRESS = re.compile(r"listening on (\S+:\d+)")


@dataclass(frozen=True)
class Registry:
    """A running registry."""

    address: str

    def answers(self) -> bool:
        """Whether it accepts connections and answers."""
        host, _, port = self.address.partition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(b"GET /v2/ HTTP/1.0\r\n\r\n")
                return b" 401 " in connection.recv(64)
        except OSError:
            return False


@contextlib.contextmanager
def on_loopback(folder: Path) -> Iterator[Registry]:
    """Run a registry for this machine only in the body; it stores images in the folder."""
    binaries.ensure([MODULE])
    log = folder / "registry.log"
    with process.running(_serve(folder, f"{controlplane.LOOPBACK}:0"), log):
        [address] = waiting.until(lambda: _ADDRESS.findall(log.read_text()), "the registry")
        yield Registry(address)


@contextlib.contextmanager
def running(cluster: handle.Cluster, folder: Path) -> Iterator[Registry]:
    """Run a registry for a cluster and this machine in the body; it stores images in the folder."""
    binaries.ensure([MODULE])
    with socket.create_server((controlplane.LOOPBACK, 0)) as listener:
        port = int(listener.getsockname()[1])
        registry = Registry(f"{controlplane.LOOPBACK}:{port}")
        serve = cluster.inside_network(*_serve(folder, registry.address))
        program = (sys.executable, "-I", str(folders.SOURCE / "forwarder.py"))
        target = (str(listener.fileno()), controlplane.LOOPBACK, str(port))
        forward = cluster.inside_network(*program, *target)
        with (
            process.running(serve, folder / "registry.log"),
            process.running(forward, folder / "forwarder.log", listener.fileno()),
        ):
            waiting.until(registry.answers, "the registry")
            yield registry


def _serve(folder: Path, address: str) -> Sequence[str]:
    """Write the registry's configuration and users; return the command that starts it."""
    configuration = folder / "registry.yaml"
    text = _CONFIGURATION.format(folder=folder, address=address)
    configuration.write_text(text, encoding="utf-8")
    (folder / "users").write_text(f"{USER}:{_HASH}\n", encoding="utf-8")
    return str(binaries.path(MODULE)), "serve", str(configuration)
