"""Build the manifests of a job's children: pure functions, so that a repeat is equal."""

import copy
import dataclasses
import datetime
import hashlib
import json
from typing import Any

from tfparallel_operator.api import names, paths, types
from tfparallel_operator.core import (
    cluster_spec,
    containers,
    decision,
    failure,
    gang,
    gpus,
    host_network,
    memory,
    observation,
    ownership,
    replicas,
    topology,
    trainer_container,
)
from tfparallel_trainer.contract import environment, job_file

JOB_FILE_KEY = "job.json"
CLUSTER_FILE_KEY = "cluster.json"
CA_FILE_KEY = "ca.crt"
SPEC_KEY = "spec.json"
TOKEN_FILE = "token"  # noqa: S105 (a name, not a secret)
LARGEST_CONFIG = 1_000_000
"""Bytes of data in a ConfigMap, which the API server bounds by 1 MiB: beyond it the record of the
spec is left out."""
TOKEN_SECONDS = 3600


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the installation decides for every job."""

    trainer_image: str
    """Image of replicas that have no template."""
    progress_url: str | None = None
    """Address of the progress endpoint without the job's path; absent: nothing is reported."""
    progress_ca: str | None = None
    """Certificates (PEM) that the progress endpoint is trusted by; absent: the system's."""
    first_pause: datetime.timedelta = datetime.timedelta(seconds=10)
    """How long the second restart after a failure waits; each further one twice as long."""
    settling: datetime.timedelta = failure.SETTLING
    """How long a verdict that ends a job waits for signs that the cluster took a replica."""
    share_above: int | None = cluster_spec.SHARE_ABOVE
    """Replicas of a job beyond which the shipped trainer reads the cluster from a file that all
    share; None: never."""
    listening_since: datetime.datetime | None = None
    """Since when reports of progress are taken: silence before says nothing."""
    gangs: gang.Installation | None = None
    """Who starts pods together; absent: nothing schedules here, all pods start at once."""
    queues: bool = False
    """Whether jobs with the label of a queue wait for Kueue."""
    trainer_pull_secrets: tuple[str, ...] = ()
    """Secrets that pull the trainer's image, for pods whose template has none."""


def progress_path(namespace: str, name: str) -> str:
    """Return the path of a job's progress below the endpoint's address."""
    return f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}/progress"


def progress_audience(uid: str) -> str:
    """Return the audience of a job's token: one job's token is worth nothing for another."""
    return f"{names.GROUP}/{uid}"


def config_name(job: types.TFParallelJob) -> str:
    """Return the name of the job's ConfigMap."""
    return config_name_of(job.metadata.name)


def config_name_of(job_name: str) -> str:
    """Return the name of the ConfigMap of the job of a name."""
    return f"{job_name}-tfparallel"


def service(job: types.TFParallelJob) -> decision.Manifest:
    """Build the one headless Service: names resolve before pods are ready, as servers need it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": ownership.metadata(job, cluster_spec.service_name(job)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": ownership.labels(job),
            "ports": [{"name": names.PORT_NAME, "port": names.DEFAULT_PORT}],
        },
    }


def config(job: types.TFParallelJob, settings: Settings) -> decision.Manifest:
    """Build the ConfigMap: the trainer's job file, the cluster of a large job, the progress
    endpoint's certificates, and the spec as a record.

    The record is what the job goes on with when its spec is made invalid. It is here because the
    ConfigMap belongs to the job, outlives the operator, and has room: a spec within the status or
    an annotation would double what `kubectl get -o yaml` shows and every watch carries.
    """
    data = {SPEC_KEY: _record(job)}
    if job.spec.trainer is not None:
        content = job_file.JobFile(
            name=job.metadata.name,
            strategy=replicas.strategy(job).value,
            trainer=job.spec.trainer,
            mesh=job.spec.mesh,
            evaluator=types.Role.EVALUATOR in job.spec.tf_replica_specs,
        )
        data[JOB_FILE_KEY] = content.model_dump_json(by_alias=True, exclude_none=True, indent=2)
    if cluster_spec.is_shared(job, settings.share_above):
        data[CLUSTER_FILE_KEY] = cluster_spec.shared(job)
    if settings.progress_ca is not None:
        data[CA_FILE_KEY] = settings.progress_ca
    if sum(map(len, data.values())) > LARGEST_CONFIG:
        del data[SPEC_KEY]
    metadata = ownership.metadata(job, config_name(job))
    metadata["annotations"] = {names.ANNOTATION_CONTENT: fingerprint(job, settings)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def fingerprint(job: types.TFParallelJob, settings: Settings) -> str:
    """Return what the content of the ConfigMap depends on, in short.

    The generation stands for all of the spec, so that no look at a job builds the content.
    """
    ports = job.status.host_ports
    sources = (settings.share_above, settings.progress_ca, ports and ports.first)
    digest = hashlib.sha256(repr(sources).encode()).hexdigest()[:12]
    return f"{job.metadata.generation}-{digest}"


def config_change(
    job: types.TFParallelJob, settings: Settings, config_map: observation.Config | None
) -> tuple[decision.Change, ...]:
    """Write the ConfigMap again when what it was made from has changed."""
    if config_map is None or config_map.fingerprint == fingerprint(job, settings):
        return ()
    manifest = config(job, settings)
    keys = (JOB_FILE_KEY, CLUSTER_FILE_KEY, CA_FILE_KEY, SPEC_KEY)
    fields = {
        "metadata": {"annotations": manifest["metadata"]["annotations"]},
        "data": {key: manifest["data"].get(key) for key in keys},
    }
    name = config_name(job)
    return (decision.Change(decision.CONFIG_MAP, name, config_map.uid, fields),)


def _record(job: types.TFParallelJob) -> str:
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    record = {"generation": job.metadata.generation, "spec": spec}
    return json.dumps(record, separators=(",", ":"))


def pod(
    job: types.TFParallelJob,
    replica: replicas.Replica,
    settings: Settings,
    *,
    attempt: int,
    replica_attempt: int,
    memory_growths: int = 0,
    known: str | None = None,
) -> decision.Manifest:
    """Build the pod of one replica from its template, or from the shipped trainer's.

    Args:
        job: the job.
        replica: which of its replicas.
        settings: what the installation decides.
        attempt: the job's attempt.
        replica_attempt: the replica's restarts within it.
        memory_growths: how often the memory of its role has grown.
        known: what `cluster_spec.peers` has returned for the job; None: it is not known.
    """
    spec = replicas.by_role(job)[replica.role]
    template = copy.deepcopy(spec.template) or {}
    template_metadata = template.get("metadata") or {}
    metadata = ownership.metadata(job, replica.pod_name(job.metadata.name))
    metadata["annotations"] = dict(template_metadata.get("annotations") or {})
    metadata["labels"] = {
        **(template_metadata.get("labels") or {}),
        **ownership.labels(job),
        names.LABEL_ROLE: replica.role.label,
        names.LABEL_INDEX: str(replica.index),
        names.LABEL_ATTEMPT: str(attempt),
        names.LABEL_REPLICA_ATTEMPT: str(replica_attempt),
        **topology.labels(job, replica),
    }
    pod_spec = template.get("spec") or {}
    pod_spec["hostname"] = replica.pod_name(job.metadata.name)
    pod_spec["subdomain"] = cluster_spec.service_name(job)
    pod_spec["restartPolicy"] = "Never"
    near = topology.affinity(job, replica)
    if near is not None:
        pod_spec.setdefault("affinity", {}).setdefault("podAffinity", near)
    container = _container(pod_spec)
    if job.spec.trainer is not None:
        image = settings.trainer_image
        trainer_container.fill(pod_spec, container, job, job.spec.trainer, image)
        if container["image"] == image:
            _add_pull_secrets(pod_spec, settings)
        _mount_config(pod_spec, container, job)
        containers.set_env(container, environment.JOB_FILE, f"{paths.CONFIG_DIR}/{JOB_FILE_KEY}")
    _fill_container(container, job, replica, spec, attempt)
    grace = pod_spec.get("terminationGracePeriodSeconds")
    if grace is not None:
        containers.set_env(container, environment.GRACE_SECONDS, str(grace))
    _tell_cluster(container, job, replica, settings, known)
    gpus.prepare(pod_spec, container)
    if job.spec.host_network:
        host_network.prepare(pod_spec, container)
    if memory_growths and job.spec.run_policy.out_of_memory is not None:
        memory.grow(container, job.spec.run_policy.out_of_memory, memory_growths)
    if settings.progress_url and replica == replicas.coordinator(job):
        _report_progress(pod_spec, container, job, settings)
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}
    gang.join(manifest, job, settings.gangs, attempt, replica_attempt)
    return manifest


def request_devices(resources: dict[str, Any], spec: types.ReplicaSpec) -> None:
    """Add the GPUs that `devices` is short for, in place."""
    if spec.devices is not None:
        limits = resources.setdefault("limits", {})
        limits.setdefault(names.GPU_RESOURCE, str(spec.devices))


def pod_group(job: types.TFParallelJob, manifest: decision.Manifest) -> decision.Manifest:
    """Return the manifest of a job's PodGroup with the labels and the owner of a child."""
    return {**manifest, "metadata": ownership.metadata(job, manifest["metadata"]["name"])}


def _container(pod_spec: dict[str, Any]) -> dict[str, Any]:
    """Return the container that trains, added to the pod where the template has none."""
    listed: list[dict[str, Any]] = pod_spec.setdefault("containers", [])
    for container in listed:
        if container.get("name") == names.CONTAINER:
            return container
    listed.append({"name": names.CONTAINER})
    return listed[-1]


def _fill_container(
    container: dict[str, Any],
    job: types.TFParallelJob,
    replica: replicas.Replica,
    spec: types.ReplicaSpec,
    attempt: int,
) -> None:
    port = cluster_spec.port(job, replica)
    ports = container.setdefault("ports", [])
    if not any(declared.get("name") == names.PORT_NAME for declared in ports):
        ports.append({"name": names.PORT_NAME, "containerPort": port})
    if spec.devices is not None:
        request_devices(container.setdefault("resources", {}), spec)
    containers.set_env(container, environment.JOB_UID, job.metadata.uid)
    containers.set_env(container, environment.ATTEMPT, str(attempt))
    words = container.get("terminationMessagePath", containers.FAILURE_FILE)
    containers.set_env(container, environment.FAILURE_FILE, words)


def _tell_cluster(
    container: dict[str, Any],
    job: types.TFParallelJob,
    replica: replicas.Replica,
    settings: Settings,
    known: str | None,
) -> None:
    """Say who the peers are: in the variable, or in the file that the replicas share."""
    if not cluster_spec.is_shared(job, settings.share_above):
        config = cluster_spec.tf_config(job, replica, known)
        containers.set_env(container, environment.TF_CONFIG, config)
        return
    containers.set_env(container, environment.TF_CONFIG, cluster_spec.task(replica))
    path = f"{paths.CONFIG_DIR}/{CLUSTER_FILE_KEY}"
    containers.set_env(container, environment.CLUSTER_FILE, path)
    worker = job.spec.tf_replica_specs.get(types.Role.WORKER)
    if worker is not None:
        containers.set_env(container, environment.WORKERS, str(worker.replicas))


def _report_progress(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    job: types.TFParallelJob,
    settings: Settings,
) -> None:
    path = progress_path(job.metadata.namespace, job.metadata.name)
    containers.set_env(container, environment.PROGRESS_URL, f"{settings.progress_url}{path}")
    token = {
        "serviceAccountToken": {
            "path": TOKEN_FILE,
            "audience": progress_audience(job.metadata.uid),
            "expirationSeconds": TOKEN_SECONDS,
        }
    }
    volume = {"projected": {"sources": [token]}}
    containers.mount(pod_spec, container, "tfparallel-token", paths.TOKEN_DIR, volume)
    containers.set_env(
        container, environment.PROGRESS_TOKEN_FILE, f"{paths.TOKEN_DIR}/{TOKEN_FILE}"
    )
    if settings.progress_ca is not None:
        _mount_config(pod_spec, container, job)
        containers.set_env(
            container, environment.PROGRESS_CA_FILE, f"{paths.CONFIG_DIR}/{CA_FILE_KEY}"
        )


def _mount_config(
    pod_spec: dict[str, Any], container: dict[str, Any], job: types.TFParallelJob
) -> None:
    volume = containers.config_map(config_name(job))
    containers.mount(pod_spec, container, "tfparallel-job", paths.CONFIG_DIR, volume)


def _add_pull_secrets(pod_spec: dict[str, Any], settings: Settings) -> None:
    if settings.trainer_pull_secrets:
        listed = [{"name": name} for name in settings.trainer_pull_secrets]
        pod_spec.setdefault("imagePullSecrets", listed)
