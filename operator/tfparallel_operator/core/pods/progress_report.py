"""How the coordinator's pod reaches the progress endpoint: its address, a token, certificates."""

from typing import Any

from tfparallel_operator.api import names, paths, types
from tfparallel_operator.core import installation
from tfparallel_operator.core.pods import config, containers
from tfparallel_trainer.contract import environment

TOKEN_FILE = "token"  # noqa: S105 (a name, not a secret)
TOKEN_SECONDS = 3600


def path(namespace: str, name: str) -> str:
    """Return the path of a job's progress below the endpoint's address."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/progress"


def audience(uid: str) -> str:
    """Return the audience of a job's token: one job's token is worth nothing for another."""
    return f"{names.GROUP}/{uid}"


def prepare(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    job: types.TFParallelJob,
    settings: installation.Settings,
) -> None:
    """Have a pod report the job's progress, in place."""
    url = f"{settings.progress_url}{path(job.metadata.namespace, job.metadata.name)}"
    containers.set_env(container, environment.PROGRESS_URL, url)
    token = {
        "serviceAccountToken": {
            "path": TOKEN_FILE,
            "audience": audience(job.metadata.uid),
            "expirationSeconds": TOKEN_SECONDS,
        }
    }
    volume = {"projected": {"sources": [token]}}
    containers.mount(pod_spec, container, "tfparallel-token", paths.TOKEN_DIR, volume)
    token_file = f"{paths.TOKEN_DIR}/{TOKEN_FILE}"
    containers.set_env(container, environment.PROGRESS_TOKEN_FILE, token_file)
    if settings.progress_ca is not None:
        config.mount(pod_spec, container, job)
        ca_file = f"{paths.CONFIG_DIR}/{config.CA_FILE_KEY}"
        containers.set_env(container, environment.PROGRESS_CA_FILE, ca_file)
