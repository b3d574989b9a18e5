"""A test cluster for as long as something is measured on it."""

import contextlib
import os
from collections.abc import Iterator

from testing.cluster import handle, lifecycle, settings, state

Cluster = handle.Cluster


@contextlib.contextmanager
def cluster(purpose: str, wanted: settings.Settings) -> Iterator[Cluster]:
    """Start a cluster of its own, and end it."""
    name = f"{purpose}-{os.getpid()}"
    found = lifecycle.up(name, wanted)
    try:
        yield found
    finally:
        lifecycle.down(name)


def api_server(found: Cluster) -> int:
    """The id of the API server's process."""
    record = state.load(found.directory)
    if record is None:
        raise RuntimeError(f"The cluster {found.name} does not run.")
    [pid] = [one.pid for one in record.processes if one.name.endswith("kube-apiserver")]
    return pid
