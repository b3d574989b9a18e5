"""Where jobs train: a cluster, or this machine."""

import dataclasses
import pathlib
from typing import Protocol

from tfparallel import backend
from tfparallel.backends.cluster import access
from tfparallel.backends.cluster import cluster_backend as cluster_backend
from tfparallel.backends.local import folders
from tfparallel.backends.local import local_backend as machine_backend


class Place(Protocol):
    """What a client connects to."""

    def connect(self) -> backend.Backend:
        """Return the backend, which is not a connection yet.

        Raises:
            SpecError: the place does not exist.
            Failure: the place cannot be reached.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """A Kubernetes cluster that has the operator; by default the one that kubectl uses."""

    context: str | None = None
    """Context of the kubeconfig; None: the current one."""
    namespace: str | None = None
    """Namespace of the jobs; None: that of the context."""
    kubeconfig: str | None = None
    """Path; None: $KUBECONFIG, else ~/.kube/config, else the service account of the pod."""

    def connect(self) -> backend.Backend:
        """Return the cluster as a backend."""
        choice = access.ConnectionOptions(
            kubeconfig=self.kubeconfig, context=self.context, namespace=self.namespace
        )
        return cluster_backend.ClusterBackend(access.find(choice))


@dataclasses.dataclass(frozen=True, slots=True)
class Local:
    """This machine: each job is a process, which keeps running when the client ends."""

    folder: str | pathlib.Path = folders.RUNS
    """Results, checkpoints and logs of a job go to <folder>/<job>/<time>."""

    def connect(self) -> backend.Backend:
        """Return the machine as a backend."""
        return machine_backend.LocalBackend(pathlib.Path(self.folder))
