"""An API server that is killed and comes back, with its data, as when its node is updated."""

import dataclasses
import os
import pathlib
import signal
import socket

from testing.cluster import controlplane, handle, process, state

NAME = "kube-apiserver"
PORT = "--secure-port="
LIMIT_SECONDS = controlplane.START_LIMIT_SECONDS


def restart(cluster: handle.Cluster) -> None:
    """Kill the API server, restart it, and return when it is ready."""
    cluster_state = state.load(cluster.directory)
    assert cluster_state is not None
    [record] = [each for each in cluster_state.processes if each.name == NAME]
    command = pathlib.Path(f"/proc/{record.pid}/cmdline").read_text().rstrip("\0").split("\0")
    os.kill(record.pid, signal.SIGKILL)
    [port] = [int(part.partition("=")[2]) for part in command if part.startswith(PORT)]
    process.wait_until("its port to be free", lambda: _is_free(port), (), LIMIT_SECONDS)
    others = tuple(each for each in cluster_state.processes if each != record)
    ledger = state.Ledger(cluster.directory, dataclasses.replace(cluster_state, processes=others))
    ledger.start(NAME, command)
    ledger.wait_until("the API server", lambda: controlplane.answers(cluster), LIMIT_SECONDS)


def _is_free(port: int) -> bool:
    """Whether all threads of whoever listened there are gone."""
    try:
        socket.create_server((controlplane.LOOPBACK, port)).close()
    except OSError:
        return False
    return True
