"""Builds the pods of replicas, from a role's template or for the shipped trainer. Pure."""

import copy
import functools
import hashlib
from typing import Any

from tfparallel_operator.api import job_status, names, paths, types
from tfparallel_operator.core import decision, installation, replicas
from tfparallel_operator.core.layout import Layout, compact
from tfparallel_operator.core.pods import (
    avoided_nodes,
    cluster_spec,
    config,
    containers,
    expansion,
    gpus,
    host_network,
    memory,
    ownership,
    pod_defaults,
    progress_report,
    restart_policies,
    topology,
    trainer_container,
)
from tfparallel_operator.core.status import replica_records
from tfparallel_trainer.contract import environment

_TF_CONFIG = {"name": environment.TF_CONFIG, "value": f"$({cluster_spec.SHARED_VARIABLE})"}
"""A placeholder for TF_CONFIG among the variables of a role. Each replica gets its own value."""


class PodBuilder:
    """Builds the pods of the current attempt of a job.

    The pods of a role differ in few fields, so the other fields are built once and shared. A caller
    may set fields of a pod's metadata and spec, but must not change their values in place.
    """

    def __init__(
        self,
        layout: Layout,
        settings: installation.InstallationSettings,
        status: job_status.JobStatus,
    ) -> None:
        self._layout = layout
        self._job = layout.job
        self._settings = settings
        self._status = status
        self._shares_cluster = cluster_spec.is_shared(layout, settings.share_above)
        self._shared: dict[tuple[types.Role, bool], decision.Manifest] = {}
        self._fingerprints: dict[tuple[types.Role, bool], str] = {}
        self._avoided_nodes = avoided_nodes.find(status)
        self._affinity = functools.cache(functools.partial(topology.affinity, layout))

    def build(self, replica: replicas.Replica) -> decision.Manifest:
        """Build the pod of a replica."""
        key = replica.role, replica == self._layout.coordinator
        if key not in self._shared:
            self._shared[key] = self._build_shared(*key)
        shared = self._shared[key]
        name = replica.pod_name(self._job.metadata.name)
        neighbours = topology.labels(self._layout, replica)
        labels = {
            **shared["metadata"]["labels"],
            names.LABEL_INDEX: str(replica.index),
            names.LABEL_REPLICA_ATTEMPT: str(self._status.replica_attempts.get(replica.name, 0)),
            **neighbours,
        }
        metadata = {**shared["metadata"], "name": name, "labels": labels}
        metadata["annotations"] = dict(shared["metadata"]["annotations"])
        if self._has_agent(_container(shared["spec"]), replica.role):
            metadata["annotations"][names.ANNOTATION_AGENT] = self.agent_fingerprint(replica)
        spec = {**shared["spec"], "hostname": name}
        affinity = self._affinity(replica.role, tuple(neighbours.items()))
        if affinity is not None:
            spec["affinity"] = {"podAffinity": affinity, **(spec.get("affinity") or {})}
        if self._avoided_nodes:
            spec["affinity"] = avoided_nodes.exclude(spec, self._avoided_nodes)
        spec["containers"] = [
            self._for_replica(containers.ContainerBuilder(spec, container), replica)
            if container.get("name") == names.CONTAINER
            else container
            for container in spec["containers"]
        ]
        return {**shared, "metadata": metadata, "spec": spec}

    def agent_fingerprint(self, replica: replicas.Replica) -> str:
        """Return a fingerprint of all that a replica's pod is built from, except the attempt.

        A pod with another one comes from another spec or cluster, or from another version of the
        operator.
        """
        key = replica.role, replica == self._layout.coordinator
        if key not in self._fingerprints:
            of_no_attempt = self._status.model_copy(update={"attempt": 0})
            builder = PodBuilder(self._layout, self._settings, of_no_attempt)
            files = config.fingerprint(self._layout, self._settings)
            content = compact([builder._build_shared(*key), self._layout.cluster, files])
            self._fingerprints[key] = hashlib.sha256(content.encode()).hexdigest()[:12]
        return self._fingerprints[key]

    def _has_agent(self, container: containers.ContainerBuilder, role: types.Role) -> bool:
        """Whether the container's first process is an agent, and the operator answers it.

        The evaluator has none: while a gang restarts in place, it restarts in a new pod.
        """
        command = (*(container.spec.get("command") or ()), *(container.spec.get("args") or ()))
        return (
            self._job.spec.trainer is not None
            and bool(self._settings.progress_url)
            and role is not types.Role.EVALUATOR
            and command == trainer_container.COMMAND
            and not container.leaves_empty(environment.AGENT_URL)
        )

    def _for_replica(
        self, shared: containers.ContainerBuilder, replica: replicas.Replica
    ) -> dict[str, Any]:
        """Return the container that trains, with the replica's port and its position in the
        cluster."""
        ports = shared.spec.get("ports") or []
        if not any(port.get("name") == names.PORT_NAME for port in ports):
            port = {"name": names.PORT_NAME, "containerPort": self._layout.port(replica)}
            ports = [*ports, port]
        tf_config = cluster_spec.tf_config(
            self._layout, replica, shares_cluster=self._shares_cluster
        )
        variable = {"name": environment.TF_CONFIG, "value": tf_config}
        env = [variable if shown is _TF_CONFIG else shown for shown in shared.spec["env"]]
        restarts = self._status.replica_attempts.get(replica.name, 0)
        if restarts and self._has_agent(shared, replica.role):
            env.append({"name": environment.REPLICA_ATTEMPT, "value": str(restarts)})
        return {**shared.spec, "ports": ports, "env": env}

    def _build_shared(self, role: types.Role, coordinates: bool) -> decision.Manifest:
        """Build the fields that the pods of a role share, or those of the coordinator."""
        job, settings, spec = self._job, self._settings, self._layout.specs[role]
        template = copy.deepcopy(spec.template) or {}
        template["spec"] = template.get("spec") or {}
        if job.spec.trainer is not None:
            trainer_container.add_user_fields(_container(template["spec"]), job, job.spec.trainer)
        template = pod_defaults.merge(copy.deepcopy(settings.pod_defaults), template)
        template_metadata = template.get("metadata") or {}
        metadata = ownership.metadata(job, "")
        metadata["annotations"] = dict(template_metadata.get("annotations") or {})
        metadata["labels"] = {
            **(template_metadata.get("labels") or {}),
            **ownership.labels(job),
            names.LABEL_ROLE: role.label,
            names.LABEL_ATTEMPT: str(self._status.attempt),
        }
        pod_spec = template["spec"]
        pod_spec["subdomain"] = self._layout.service_name
        restart_policies.remove(pod_spec)
        container = _container(pod_spec)
        self._fill_container(container, spec)
        if job.spec.trainer is not None:
            trainer_container.fill(container, job, job.spec.trainer, settings)
            config.mount(container, job)
            job_file = f"{paths.CONFIG_DIR}/{config.JOB_FILE_KEY}"
            container.set_env(environment.JOB_FILE, job_file)
        gpus.prepare(container)
        if job.spec.host_network:
            host_network.prepare(container)
        growths = replica_records.read(self._status, role).memory_growths
        if growths and job.spec.run_policy.out_of_memory is not None:
            memory.grow(container.spec, job.spec.run_policy.out_of_memory, growths)
        if coordinates and settings.progress_url:
            progress_report.prepare(container, job, settings)
        if self._has_agent(container, role):
            progress_report.prepare_agent(container, job, settings)
        variables = container.spec["env"]
        if not any(variable["name"] == environment.TF_CONFIG for variable in variables):
            variables.append(_TF_CONFIG)
        for listed in (*pod_spec["containers"], *(pod_spec.get("initContainers") or ())):
            if listed.get("env"):
                listed["env"] = expansion.order(listed["env"])
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}

    def _fill_container(
        self, container: containers.ContainerBuilder, spec: types.ReplicaSpec
    ) -> None:
        """Add the devices, and the variables that every command gets."""
        if spec.devices is not None:
            request_devices(container.spec.setdefault("resources", {}), spec)
        container.set_env(environment.JOB_UID, self._job.metadata.uid)
        container.set_env(environment.ATTEMPT, str(self._status.attempt))
        container.set_env(environment.FAILURE_FILE, container.failure_file)
        trainer = self._job.spec.trainer
        container.set_env(environment.HASH_SEED, str(trainer.seed if trainer is not None else 0))
        if trainer is None:
            action = self._job.spec.on_separate_training
            container.set_env(environment.ON_SEPARATE_TRAINING, action.value)
        grace = container.pod_spec.get("terminationGracePeriodSeconds")
        if grace is not None:
            container.set_env(environment.GRACE_SECONDS, str(grace))
        if self._shares_cluster:
            config.share_cluster(container, self._layout)


def request_devices(resources: dict[str, Any], spec: types.ReplicaSpec) -> None:
    """Add the GPUs that `devices` is short for, in place."""
    if spec.devices is not None:
        limits = resources.setdefault("limits", {})
        limits.setdefault(names.GPU_RESOURCE, str(spec.devices))


def _container(pod_spec: dict[str, Any]) -> containers.ContainerBuilder:
    """Return the container that trains. If the template has none, add it to the pod."""
    listed: list[dict[str, Any]] = pod_spec.setdefault("containers", [])
    if not any(container.get("name") == names.CONTAINER for container in listed):
        listed.append({"name": names.CONTAINER})
    trains = next(container for container in listed if container.get("name") == names.CONTAINER)
    return containers.ContainerBuilder(pod_spec, trains)
