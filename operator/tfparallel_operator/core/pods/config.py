"""The ConfigMap of a job: the trainer's files, and the record of the last valid spec.

If the job's spec becomes invalid, the job continues with the record. The ConfigMap belongs to the
job, outlives the operator, and has room for it. In the status or in an annotation, the spec would
double the output of `kubectl get -o yaml` and the traffic of every watch.
"""

import hashlib

from tfparallel_operator.api import names, paths, types
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.layout import Layout, compact
from tfparallel_operator.core.pods import cluster_spec, containers, ownership
from tfparallel_trainer.contract import environment, job_file

JOB_FILE_KEY = "job.json"
CLUSTER_KEY = "cluster.json"
CA_FILE_KEY = "ca.crt"
SPEC_KEY = "spec.json"
LARGEST_DATA = 1_000_000
"""Maximum bytes of data in the ConfigMap, because the API server allows 1 MiB.

If the data are larger, the record of the spec is left out.
"""


def name(job_name: str) -> str:
    """Return the name of a job's ConfigMap."""
    return f"{job_name}-tfparallel"


def manifest(layout: Layout, settings: installation.InstallationSettings) -> decision.Manifest:
    """Build the ConfigMap: the trainer's job file, the cluster of a large job, the progress
    endpoint's certificates, and the record of the spec."""
    job = layout.job
    data = {SPEC_KEY: _record(job)}
    if job.spec.trainer is not None:
        content = job_file.JobFile(
            name=job.metadata.name,
            strategy=layout.strategy,
            trainer=job.spec.trainer,
            mesh=job.spec.mesh,
            evaluator=types.Role.EVALUATOR in job.spec.tf_replica_specs,
        )
        data[JOB_FILE_KEY] = content.model_dump_json(by_alias=True, exclude_none=True, indent=2)
    if cluster_spec.is_shared(layout, settings.share_above):
        data[CLUSTER_KEY] = cluster_spec.shared(layout)
    if settings.progress_ca is not None:
        data[CA_FILE_KEY] = settings.progress_ca
    if sum(map(len, data.values())) > LARGEST_DATA:
        del data[SPEC_KEY]
    metadata = ownership.metadata(job, name(job.metadata.name))
    metadata["annotations"] = {names.ANNOTATION_CONTENT: fingerprint(layout, settings)}
    if settings.installation:
        metadata["annotations"][names.ANNOTATION_INSTALLATION] = settings.installation
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def fingerprint(layout: Layout, settings: installation.InstallationSettings) -> str:
    """Return a fingerprint of the values on which the content of the ConfigMap depends.

    The generation represents the whole spec, so that a reconcile need not build the content.
    """
    ports = layout.host_ports
    shares_cluster = cluster_spec.is_shared(layout, settings.share_above)
    sources = (shares_cluster, settings.progress_ca, ports and ports.first)
    digest = hashlib.sha256(repr(sources).encode()).hexdigest()[:12]
    return f"{layout.job.metadata.generation}-{digest}"


def changes(
    layout: Layout,
    settings: installation.InstallationSettings,
    config_map: observation.Config | None,
) -> tuple[decision.Change, ...]:
    """Write the ConfigMap again if the values have changed from which it was built."""
    if config_map is None:
        return ()
    is_ours = config_map.installation in ("", settings.installation)
    if is_ours and config_map.fingerprint == fingerprint(layout, settings):
        return ()
    content = manifest(layout, settings)
    annotations = content["metadata"]["annotations"]
    if not is_ours:
        annotations = {**annotations, names.ANNOTATION_QUESTION: None}  # It got no answer.
    # A cluster that is no longer shared stays: pods that have yet to start may need it.
    absent = dict.fromkeys((JOB_FILE_KEY, CA_FILE_KEY, SPEC_KEY))
    fields = {
        "metadata": {"annotations": annotations},
        "data": {**absent, **content["data"]},
    }
    name = content["metadata"]["name"]
    return (decision.Change(decision.CONFIG_MAP, name, config_map.uid, fields),)


def mount(container: containers.ContainerBuilder, job: types.TFParallelJob) -> None:
    """Mount the ConfigMap of a job into a container of its pods, in place."""
    volume = containers.config_map(name(job.metadata.name))
    container.mount("tfparallel-job", paths.CONFIG_DIR, volume)


def share_cluster(container: containers.ContainerBuilder, layout: Layout) -> None:
    """Give a container the shared cluster, in place.

    The shipped trainer reads it from a file, because it may be too long for a variable.
    """
    if layout.job.spec.trainer is None:
        reference = {"name": name(layout.job.metadata.name), "key": CLUSTER_KEY}
        source = {"configMapKeyRef": reference}
        container.add_env({"name": cluster_spec.SHARED_VARIABLE, "valueFrom": source})
        return
    container.set_env(environment.CLUSTER_FILE, f"{paths.CONFIG_DIR}/{CLUSTER_KEY}")
    if layout.workers is not None:
        # The file lists every worker there may be, and not how many there are.
        container.set_env(environment.WORKERS, str(layout.workers))


def _record(job: types.TFParallelJob) -> str:
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    record = {"generation": job.metadata.generation, "spec": spec}
    return compact(record)
