"""What a run on this machine does not need, and a cluster does."""

import re
from collections.abc import Iterator

from tfparallel_operator.api import load, names, pods, problems, types

_DOMAIN = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_IMAGE = re.compile(
    rf"(?:{_DOMAIN}(?:\.{_DOMAIN})*(?::[0-9]+)?/)?{_PART}(?:/{_PART})*"
    rf"(?::\w[\w.-]{{0,127}})?(?:@{_DIGEST})?"
)
"""The grammar of the project distribution/reference, which container runtimes share."""


def find_warnings(job: types.TFParallelJob) -> list[problems.Problem]:
    """Return each field with which a job runs here and in no cluster."""
    has_trainer = job.spec.trainer is not None
    return [
        warning
        for role, spec in job.spec.tf_replica_specs.items()
        for warning in _of_pod(
            ("spec", "tfReplicaSpecs", role.value, "template", "spec"),
            load.parse_template(spec.template or {}).spec,
            has_trainer=has_trainer,
        )
    ]


def _of_pod(
    place: problems.Place, pod: pods.PodSpec, *, has_trainer: bool
) -> Iterator[problems.Problem]:
    for kind, containers in (
        ("containers", pod.containers),
        ("initContainers", pod.init_containers),
    ):
        for number, container in enumerate(containers):
            inner = (*place, kind, number, "image")
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
