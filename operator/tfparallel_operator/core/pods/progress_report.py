"""Gives pods the addresses of the progress endpoint, a token, and certificates."""

from tfparallel_operator.api import names, paths, types
from tfparallel_operator.core import installation
from tfparallel_operator.core.pods import config, containers
from tfparallel_trainer.contract import environment

TOKEN_FILE = "token"  # noqa: S105 (a name, not a secret)
TOKEN_SECONDS = 3600


def path(namespace: str, name: str) -> str:
    """Return the path of a job's progress below the endpoint's address."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/progress"


def agents_path(namespace: str, name: str) -> str:
    """Return the path at which the agents of a job's pods ask."""
    return f"{path(namespace, name)}/agents"


def audience(uid: str) -> str:
    """Return the audience of a job's token, which makes it useless for other jobs."""
    return f"{names.GROUP}/{uid}"


def prepare(
    container: containers.ContainerBuilder,
    job: types.TFParallelJob,
    settings: installation.InstallationSettings,
) -> None:
    """Let a container report the job's progress, in place."""
    url = f"{settings.progress_url}{path(job.metadata.namespace, job.metadata.name)}"
    container.set_env(environment.PROGRESS_URL, url)
    _give_token(container, job, settings)


def prepare_agent(
    container: containers.ContainerBuilder,
    job: types.TFParallelJob,
    settings: installation.InstallationSettings,
) -> None:
    """Let the agent of a container ask what follows a run, in place."""
    url = f"{settings.progress_url}{agents_path(job.metadata.namespace, job.metadata.name)}"
    container.set_env(environment.AGENT_URL, url)
    _give_token(container, job, settings)


def _give_token(
    container: containers.ContainerBuilder,
    job: types.TFParallelJob,
    settings: installation.InstallationSettings,
) -> None:
    token = {
        "serviceAccountToken": {
            "path": TOKEN_FILE,
            "audience": audience(job.metadata.uid),
            "expirationSeconds": TOKEN_SECONDS,
        }
    }
    volume = {"projected": {"sources": [token]}}
    container.mount("tfparallel-token", paths.TOKEN_DIR, volume)
    container.set_env(environment.PROGRESS_TOKEN_FILE, f"{paths.TOKEN_DIR}/{TOKEN_FILE}")
    if settings.progress_ca is not None:
        config.mount(container, job)
        container.set_env(environment.PROGRESS_CA_FILE, f"{paths.CONFIG_DIR}/{config.CA_FILE_KEY}")
