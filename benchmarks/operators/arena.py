"""A test cluster for as long as something is measured on it."""

import contextlib
import os
from collections.abc import Iterator

from testing.cluster import handle, lifecycle, settings, state

Cluster = handle.Cluster


@contextlib.contextmanager
def cluster(purpose: str, configuration: settings.Settings) -> Iterator[Cluster]:
    """Start a cluster of its own, and end it."""
    name = f"{purpose}-{os.getpid()}"
    cluster = lifecycle.up(name, configuration)
    try:
        yield cluster
    finally:
        lifecycle.down(name)


def api_server(cluster: Cluster) -> int:
    """The id of the API server's process."""
    record = state.load(cluster.directory)
    if record is None:
        raise RuntimeError(f"The cluster {cluster.name} does not run.")
    [pid] = [process.pid for process in record.processes if process.name.endswith("kube-apiserver")]
    return pid
