"""The container of the shipped trainer: its defaults, and the additions of `spec.trainer`."""

from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import paths, trainer_spec, types
from tfparallel_operator.core import installation
from tfparallel_operator.core.pods import claims, containers, sources
from tfparallel_trainer.contract import environment

COMMAND = ("python", "-m", "tfparallel_trainer")
"""The command of a container that trains, unless the template has its own."""

_USER_ID = 65532
"""The user of the shipped images, which distroless images use too."""


def fill(
    container: containers.ContainerBuilder,
    job: types.TFParallelJob,
    trainer: trainer_spec.Trainer,
    settings: installation.InstallationSettings,
) -> None:
    """Fill in what the shipped trainer needs and the template leaves out, in place."""
    spec = container.spec
    spec.setdefault("image", settings.trainer_image)
    if "command" not in spec and "args" not in spec:
        spec["command"] = list(COMMAND)
    spec.setdefault("workingDir", sources.folder(trainer.source))
    if spec["image"] == settings.trainer_image:
        _fit_shipped_image(container, settings)
    container.pod_spec.setdefault("automountServiceAccountToken", False)
    container.set_env(environment.OUTPUT_DIR, f"{paths.OUTPUT_DIR}/{job.metadata.name}")
    sources.add(container, trainer.source)
    volume: dict[str, Any] = {"emptyDir": {}}
    if trainer.checkpoint is not None and trainer.checkpoint.claim is not None:
        volume = containers.claim(claims.name(job, trainer.checkpoint.claim))
    if trainer.checkpoint is not None and trainer.checkpoint.uri is not None:
        container.set_env(environment.JOB_NAMESPACE, job.metadata.namespace)
    container.mount("tfparallel-output", paths.OUTPUT_DIR, volume, read_only=False)


def _fit_shipped_image(
    container: containers.ContainerBuilder, settings: installation.InstallationSettings
) -> None:
    """Meet the Pod Security level restricted, and pull with the installation's Secrets."""
    ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), _USER_ID)
    of_pod = {"runAsNonRoot": True, **ids, "seccompProfile": {"type": "RuntimeDefault"}}
    container.pod_spec.setdefault("securityContext", of_pod)
    none = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container.spec.setdefault("securityContext", none)
    if settings.trainer_pull_secrets:
        secrets = [{"name": name} for name in settings.trainer_pull_secrets]
        container.pod_spec.setdefault("imagePullSecrets", secrets)


def add_user_fields(
    container: containers.ContainerBuilder, job: types.TFParallelJob, trainer: trainer_spec.Trainer
) -> None:
    """Add the variables, the volumes and the pull Secrets of a job, in place."""
    pod_spec, spec = container.pod_spec, container.spec
    for variable in trainer.env:
        container.add_env(_fields(variable))
    if trainer.env_from:
        # The last of two sources of one name wins, and that is the template's.
        spec["envFrom"] = [*map(_fields, trainer.env_from), *(spec.get("envFrom") or ())]
    for volume in trainer.volumes:
        read_only = volume.read_only or volume.claim is None
        container.mount(volume.name, volume.mount_path, _source(job, volume), read_only=read_only)
    secrets = pod_spec.get("imagePullSecrets") or []
    names = [name for name in trainer.image_pull_secrets if {"name": name} not in secrets]
    if names:
        pod_spec["imagePullSecrets"] = [*secrets, *({"name": name} for name in names)]


def _fields(value: trainer_spec.Variable | trainer_spec.Variables) -> dict[str, Any]:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)


def _source(job: types.TFParallelJob, volume: trainer_spec.Volume) -> Mapping[str, Any]:
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.config_map is not None:
        return containers.config_map(volume.config_map)
    return containers.claim(claims.name(job, str(volume.claim)))
