"""Finds problems of a job that show only in a cluster, not in a run on this machine."""

import re
from collections.abc import Iterator

from tfparallel_operator.api import load, names, pods, problems, types
from tfparallel_operator.core.pods import restart_policies

_DOMAIN = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_IMAGE = re.compile(
    rf"(?:{_DOMAIN}(?:\.{_DOMAIN})*(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    rf"(?::\w[\w.-]{{0,127}})?(?:@{_DIGEST})?"
)
"""The grammar of the project distribution/reference, which container runtimes share."""


def find_warnings(job: types.TFParallelJob) -> list[problems.Problem]:
    """Return the fields that no cluster accepts, or that have no effect there."""
    has_trainer = job.spec.trainer is not None
    warnings: list[problems.Problem] = []
    for role, spec in job.spec.tf_replica_specs.items():
        pod_path = ("spec", "tfReplicaSpecs", role.value, "template", "spec")
        pod = load.parse_template(spec.template or {}).spec
        warnings += _of_pod(pod_path, pod, has_trainer=has_trainer)
        warnings += (
            problems.Problem(
                (*pod_path, *field),
                "counts for nothing: only the operator restarts replicas. Remove it, or for a"
                " sidecar use an init container with restartPolicy Always",
            )
            for field in restart_policies.find(spec.pod_spec)
        )
    return warnings


def _of_pod(
    pod_path: problems.Place, pod: pods.PodSpec, *, has_trainer: bool
) -> Iterator[problems.Problem]:
    for kind, containers in (
        ("containers", pod.containers),
        ("initContainers", pod.init_containers),
    ):
        for number, container in enumerate(containers):
            inner = (*pod_path, kind, number, "image")
            if container.image and not _IMAGE.fullmatch(container.image):
                yield problems.Problem(
                    inner,
                    f"received {container.image!r}, which no cluster can pull; write"
                    " REGISTRY/NAME:TAG, with the name in lower case",
                )
            elif not container.image and not (has_trainer and container.name == names.CONTAINER):
                yield problems.Problem(
                    inner, "missing; a cluster needs it: write REGISTRY/NAME:TAG"
                )
