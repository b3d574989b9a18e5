"""Pods of replicas, from a role's template or the shipped trainer's. Pure: a repeat is equal."""

import copy
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import names, paths, types
from tfparallel_operator.core import decision, installation, layout, replicas
from tfparallel_operator.core.pods import (
    cluster_spec,
    config,
    containers,
    gpus,
    host_network,
    memory,
    ownership,
    pod_defaults,
    progress_report,
    topology,
    trainer_container,
)
from tfparallel_trainer.contract import environment


class PodBuilder:
    """Builds the pods of one attempt of a job.

    The pods of a role differ in few fields, so the others are built once and shared. Who changes a
    pod may set fields of its metadata and its spec, and never changes one in depth.
    """

    def __init__(
        self, layout: layout.Layout, settings: installation.Settings, attempt: int
    ) -> None:
        self._layout = layout
        self._job = layout.job
        self._settings = settings
        self._attempt = attempt
        self._shares_cluster = cluster_spec.is_shared(layout, settings.share_above)
        self._shared: dict[tuple[types.Role, bool, int], decision.Manifest] = {}
        self._affinities: dict[tuple[types.Role, tuple[str, ...]], dict[str, Any] | None] = {}

    def build(
        self, replica: replicas.Replica, *, replica_attempt: int = 0, memory_growths: int = 0
    ) -> decision.Manifest:
        """Build the pod of one replica.

        Args:
            replica: which of the job's replicas.
            replica_attempt: the replica's restarts within the attempt.
            memory_growths: how often the memory of its role has grown.
        """
        key = replica.role, replica == self._layout.coordinator, memory_growths
        if key not in self._shared:
            self._shared[key] = self._build_shared(*key)
        shared = self._shared[key]
        name = replica.pod_name(self._job.metadata.name)
        neighbours = topology.labels(self._layout, replica)
        labels = {
            **shared["metadata"]["labels"],
            names.LABEL_INDEX: str(replica.index),
            names.LABEL_REPLICA_ATTEMPT: str(replica_attempt),
            **neighbours,
        }
        annotations = dict(shared["metadata"]["annotations"])
        metadata = {
            **shared["metadata"],
            "name": name,
            "labels": labels,
            "annotations": annotations,
        }
        spec = {**shared["spec"], "hostname": name}
        affinity = self._affinity(replica.role, neighbours)
        if affinity is not None:
            spec["affinity"] = {"podAffinity": affinity, **(spec.get("affinity") or {})}
        spec["containers"] = [
            self._for_replica(container, replica)
            if container.get("name") == names.CONTAINER
            else container
            for container in spec["containers"]
        ]
        return {**shared, "metadata": metadata, "spec": spec}

    def _affinity(self, role: types.Role, neighbours: Mapping[str, str]) -> dict[str, Any] | None:
        key = role, tuple(neighbours.values())
        if key not in self._affinities:
            self._affinities[key] = topology.affinity(self._layout, role, neighbours)
        return self._affinities[key]

    def _for_replica(self, container: dict[str, Any], replica: replicas.Replica) -> dict[str, Any]:
        """Return the container that trains with the replica's port and its place in the cluster."""
        ports = container.get("ports") or []
        if not any(port.get("name") == names.PORT_NAME for port in ports):
            port = {"name": names.PORT_NAME, "containerPort": self._layout.port(replica)}
            ports = [*ports, port]
        changed = {**container, "ports": ports, "env": list(container["env"])}
        if self._shares_cluster:
            tf_config = cluster_spec.task(replica)
        else:
            tf_config = cluster_spec.tf_config(self._layout, replica)
        containers.set_env(changed, environment.TF_CONFIG, tf_config)
        return changed

    def _build_shared(
        self, role: types.Role, coordinates: bool, memory_growths: int
    ) -> decision.Manifest:
        """Build what the pods of a role have in common.

        Args:
            role: the role.
            coordinates: whether it is the pod of the coordinator alone.
            memory_growths: how often the memory of the role has grown.
        """
        job, settings, spec = self._job, self._settings, self._layout.specs[role]
        template = copy.deepcopy(spec.template) or {}
        template["spec"] = template.get("spec") or {}
        if job.spec.trainer is not None:
            trainer_container.add_user_fields(
                template["spec"], _container(template["spec"]), job, job.spec.trainer
            )
        template = pod_defaults.merge(copy.deepcopy(settings.pod_defaults), template)
        template_metadata = template.get("metadata") or {}
        metadata = ownership.metadata(job, "")
        metadata["annotations"] = dict(template_metadata.get("annotations") or {})
        metadata["labels"] = {
            **(template_metadata.get("labels") or {}),
            **ownership.labels(job),
            names.LABEL_ROLE: role.label,
            names.LABEL_ATTEMPT: str(self._attempt),
        }
        pod_spec = template["spec"]
        pod_spec["subdomain"] = self._layout.service_name
        pod_spec["restartPolicy"] = "Never"
        container = _container(pod_spec)
        if job.spec.trainer is not None:
            image = settings.trainer_image
            trainer_container.fill(pod_spec, container, job, job.spec.trainer, image)
            if container["image"] == image:
                _add_pull_secrets(pod_spec, settings)
            config.mount(pod_spec, container, job)
            job_file = f"{paths.CONFIG_DIR}/{config.JOB_FILE_KEY}"
            containers.set_env(container, environment.JOB_FILE, job_file)
        self._fill_container(container, spec)
        grace = pod_spec.get("terminationGracePeriodSeconds")
        if grace is not None:
            containers.set_env(container, environment.GRACE_SECONDS, str(grace))
        if self._shares_cluster:
            self._name_cluster_file(container)
        gpus.prepare(pod_spec, container)
        if job.spec.host_network:
            host_network.prepare(pod_spec, container)
        if memory_growths and job.spec.run_policy.out_of_memory is not None:
            memory.grow(container, job.spec.run_policy.out_of_memory, memory_growths)
        if coordinates and settings.progress_url:
            progress_report.prepare(pod_spec, container, job, settings)
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}

    def _fill_container(self, container: dict[str, Any], spec: types.ReplicaSpec) -> None:
        if spec.devices is not None:
            request_devices(container.setdefault("resources", {}), spec)
        containers.set_env(container, environment.JOB_UID, self._job.metadata.uid)
        containers.set_env(container, environment.ATTEMPT, str(self._attempt))
        path = container.get("terminationMessagePath", containers.FAILURE_FILE)
        containers.set_env(container, environment.FAILURE_FILE, path)

    def _name_cluster_file(self, container: dict[str, Any]) -> None:
        """Say where the file is that lists every worker there may be, and how many there are."""
        path = f"{paths.CONFIG_DIR}/{config.CLUSTER_FILE_KEY}"
        containers.set_env(container, environment.CLUSTER_FILE, path)
        if self._layout.workers is not None:
            containers.set_env(container, environment.WORKERS, str(self._layout.workers))


def request_devices(resources: dict[str, Any], spec: types.ReplicaSpec) -> None:
    """Add the GPUs that `devices` is short for, in place."""
    if spec.devices is not None:
        limits = resources.setdefault("limits", {})
        limits.setdefault(names.GPU_RESOURCE, str(spec.devices))


def _container(pod_spec: dict[str, Any]) -> dict[str, Any]:
    """Return the container that trains, added to the pod where the template has none."""
    listed: list[dict[str, Any]] = pod_spec.setdefault("containers", [])
    for container in listed:
        if container.get("name") == names.CONTAINER:
            return container
    listed.append({"name": names.CONTAINER})
    return listed[-1]


def _add_pull_secrets(pod_spec: dict[str, Any], settings: installation.Settings) -> None:
    if settings.trainer_pull_secrets:
        listed = [{"name": name} for name in settings.trainer_pull_secrets]
        pod_spec.setdefault("imagePullSecrets", listed)
