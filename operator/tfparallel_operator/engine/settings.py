"""What the operator's process is told when it is started."""

import dataclasses
import enum

from tfparallel_operator.core import installation


class LogFormat(enum.StrEnum):
    """How log lines are written."""

    JSON = "json"
    TEXT = "text"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the process; `main` fills them from options and environment variables."""

    trainer_image: str
    """Image of replicas that have no template."""

    trainer_pull_secrets: tuple[str, ...] = ()
    """Secrets that pull that image, in the namespaces of jobs."""

    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are run; empty: all."""

    namespace: str = "default"
    """The operator's own namespace: its TLS Secret and its Lease are there."""

    instance: str = "tfparallel-operator"
    """Name of this process in Events and in the Lease: the pod's name."""

    lease: str = ""
    """Name of the Lease whose holder acts; empty: this operator acts, and must be the only one."""

    lease_seconds: int = 15
    """After so long without a renewal of the Lease another operator takes over."""

    progress_host: str = ""
    """Host name by which pods reach the progress endpoint; empty: there is no endpoint."""

    progress_port: int = 8443
    """Port of the progress endpoint."""

    health_port: int = 8080
    """Port of liveness and readiness; 0: a free one."""

    tls_secret: str = "tfparallel-operator-tls"  # noqa: S105 (a name, not a secret)
    """Name of the Secret that keeps the progress endpoint's certificates."""

    workers: int = 4
    """How many jobs are looked at at the same time."""

    log_format: LogFormat = LogFormat.JSON
    """How log lines are written."""

    gangs: installation.Gangs = dataclasses.field(default_factory=installation.Gangs)
    """Which gang schedulers the installation has."""

    kubeconfig: str | None = None
    """Path of a kubeconfig for running outside of a cluster; None: the service account."""
