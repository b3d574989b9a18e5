"""The container of the shipped trainer: what a template leaves out and `spec.trainer` adds."""

from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import paths, trainer_spec, types
from tfparallel_operator.core.pods import claims, containers, sources
from tfparallel_trainer.contract import environment

_COMMAND = ("python", "-m", "tfparallel_trainer")
_USER_ID = 65532
"""The user of the shipped images, which distroless images use too."""


def fill(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    job: types.TFParallelJob,
    trainer: trainer_spec.Trainer,
    image: str,
) -> None:
    """Fill in what the shipped trainer needs, in place, where the template is silent.

    Args:
        pod_spec: the pod's.
        container: the one that trains.
        job: the job.
        trainer: what it runs.
        image: of the shipped trainer.
    """
    container.setdefault("image", image)
    if "command" not in container and "args" not in container:
        container["command"] = list(_COMMAND)
    container.setdefault("workingDir", paths.WORKSPACE_DIR)
    if container["image"] == image:
        _restrict(pod_spec, container)
    pod_spec.setdefault("automountServiceAccountToken", False)
    sources.add(pod_spec, container, trainer.source)
    volume: dict[str, Any] = {"emptyDir": {}}
    if trainer.checkpoint is not None and trainer.checkpoint.claim is not None:
        volume = containers.claim(claims.name(job, trainer.checkpoint.claim))
    containers.mount(
        pod_spec, container, "tfparallel-output", paths.OUTPUT_DIR, volume, read_only=False
    )
    containers.set_env(container, environment.OUTPUT_DIR, f"{paths.OUTPUT_DIR}/{job.metadata.name}")


def _restrict(pod_spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Meet the Pod Security level restricted: the shipped image needs no more."""
    pod_spec.setdefault(
        "securityContext",
        {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    )
    container.setdefault(
        "securityContext",
        {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    )


def add_user_fields(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    job: types.TFParallelJob,
    trainer: trainer_spec.Trainer,
) -> None:
    """Add the variables, the volumes and the pull Secrets of a job to a pod, in place."""
    for variable in trainer.env:
        containers.add_env(container, _fields(variable))
    if trainer.env_from:
        # The last of two sources of one name wins, and that is the template's.
        container["envFrom"] = [*map(_fields, trainer.env_from), *(container.get("envFrom") or ())]
    for volume in trainer.volumes:
        read_only = volume.read_only or volume.claim is None
        source = _source(job, volume)
        containers.mount(
            pod_spec, container, volume.name, volume.mount_path, source, read_only=read_only
        )
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
