"""Starting, finding and ending clusters by name, for example:

cluster = lifecycle.up("mine", settings.Light(controllers=True, nodes=2))
print(cluster.run_kubectl("get", "nodes"))
lifecycle.down("mine")
"""

import contextlib
import dataclasses
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from testing.cluster import console, folders, full, handle, kind, light, node, settings, state

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
SESSION_NAME = re.compile(r"pytest-[a-z]+-(\d+)")
"""Name of a cluster that a session of tests starts for itself, with the id of its process."""


def up(
    name: str, cluster_settings: settings.Settings, directory: Path | None = None
) -> handle.Cluster:
    """The running cluster of this name, started when it does not run yet."""
    folder = _folder(name, directory)
    cluster = handle.at(name, cluster_settings.mode, folder)
    with state.locked(folder):
        state.require_own_folder(folder)
        cluster_state = state.load(folder)
        if cluster_state is not None and cluster_state.running():
            if not cluster_state.serves(cluster_settings):
                asked = f"{cluster_state.mode} mode with {dict(cluster_state.asked)}"
                raise console.ClusterError(
                    f"{name} runs already in {asked}: end it first or choose another name."
                )
            console.say(f"{name} runs already")
            return cluster
        if cluster_state is not None:
            console.say(f"{name} did not come up or is half dead: clearing it away")
            _end(cluster_state, folder)
        _start_cluster(name, cluster_settings, cluster)
    return cluster


def down(name: str, directory: Path | None = None) -> bool:
    """End the cluster and remove its folder; False when there was none."""
    folder = _folder(name, directory)
    if state.load(folder) is None:
        return False
    with state.locked(folder):
        cluster_state = state.load(folder)
        with _uninterrupted():
            if cluster_state is not None:
                _end(cluster_state, folder)
            state.remove(folder)
    return cluster_state is not None


def get(name: str, directory: Path | None = None) -> handle.Cluster | None:
    """The cluster of this name, if it runs."""
    folder = _folder(name, directory)
    cluster_state = state.load(folder)
    if cluster_state is None or not cluster_state.running():
        return None
    return handle.at(cluster_state.name, cluster_state.mode, folder)


def require(name: str, directory: Path | None = None) -> handle.Cluster:
    """The running cluster of this name, or an error that says that there is none."""
    cluster = get(name, directory)
    if cluster is None:
        raise console.ClusterError(f"The cluster {name} does not run.")
    return cluster


def names() -> list[str]:
    """The clusters in the default folder, running or not."""
    return sorted(path.parent.name for path in folders.clusters().glob(f"*/{state.FILE}"))


def outlives_session(cluster: handle.Cluster) -> bool:
    """Whether the cluster outlives this session, so that tests have to remove what they create."""
    return SESSION_NAME.fullmatch(cluster.name) is None


def _start_cluster(name: str, cluster_settings: settings.Settings, cluster: handle.Cluster) -> None:
    record = state.ClusterState(name, cluster_settings.mode, dataclasses.asdict(cluster_settings))
    ledger = state.Ledger(cluster.directory, record)
    try:
        _up(ledger, cluster_settings, cluster)
        ledger.mark_ready()
    except BaseException:
        console.say(f"{name} did not come up: ending what was started")
        with _uninterrupted():
            _end(ledger.state, cluster.directory)
            state.remove(cluster.directory)
        raise


def _up(ledger: state.Ledger, cluster_settings: settings.Settings, cluster: handle.Cluster) -> None:
    match cluster_settings:
        case settings.Light():
            light.up(ledger, cluster_settings, cluster)
        case settings.Full():
            full.up(ledger, cluster_settings, cluster)
        case settings.Kind():
            kind.up(ledger.name, cluster.kubeconfig)
            node.give_gpus(cluster, cluster_settings.gpus)


def _end(cluster_state: state.ClusterState, folder: Path) -> None:
    enders = {
        settings.Light.mode: light.down,
        settings.Full.mode: full.down,
        settings.Kind.mode: kind.down,
    }
    enders[cluster_state.mode](cluster_state, folder)


def _folder(name: str, directory: Path | None) -> Path:
    if NAME_PATTERN.fullmatch(name) is None:
        raise console.ClusterError(f"{name!r} is no name: use up to 40 of a-z, 0-9 and -.")
    return folders.clusters() / name if directory is None else directory.resolve()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore a second Ctrl-C during the clean-up after the first."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
