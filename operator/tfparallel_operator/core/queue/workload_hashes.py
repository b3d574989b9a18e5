"""Hashes of what Kueue compares of a job's pods: an annotation of its Workload. Pure."""

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import names, quantities, types
from tfparallel_operator.core import observation
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import memory, pod_builder
from tfparallel_operator.core.status import replica_records

CONTAINER_KINDS = ("initContainers", "containers")

_POD_RESOURCES = ("resources", "overhead", "runtimeClassName", "resourceClaims")
"""Fields of a pod that request resources in addition to its containers."""
_SCHEDULING = ("nodeSelector", "affinity", "tolerations", "priorityClassName")
_VERSION = "2"
"""Version of the hashes. Hashes of another version, from another release, are not compared."""


def annotation(layout: Layout) -> str:
    """Return the value of a Workload's annotation: both hashes, and their version."""
    return f"{of_resources(layout)}-{of_scheduling(layout)}-{_VERSION}"


def parse(workload: observation.Workload) -> tuple[str, str]:
    """Return the hashes of the resources and of the placement in a Workload's annotation."""
    resources, _, hashes = workload.resources.partition("-")
    scheduling_hash, _, version = hashes.partition("-")
    return (resources, scheduling_hash) if version == _VERSION else ("", "")


def of_resources(layout: Layout) -> str:
    """Return a hash of the resources of the pods of each role.

    It covers what Kueue compares: the containers' requests and limits in order, as numbers, without
    their names. Kueue and webhooks may add defaults to a Workload, so its own fields are not
    compared.
    """
    asked = {}
    for role, spec in layout.specs.items():
        initial, containers = (spec.pod_spec.get(kind) or () for kind in CONTAINER_KINDS)
        if not any(container.get("name") == names.CONTAINER for container in containers):
            containers = (*containers, {"name": names.CONTAINER})
        asked[role.label] = [
            [_asked(layout, role, container), *_fields(container, "restartPolicy")]
            for container in (*initial, *containers)
        ] + _fields(spec.pod_spec, *_POD_RESOURCES)
    return _hash(asked)


def of_scheduling(layout: Layout) -> str:
    """Return a hash of the fields that determine the flavor and the priority of the pods."""
    specs = layout.specs.items()
    return _hash({role.label: _fields(spec.pod_spec, *_SCHEDULING) for role, spec in specs})


def _asked(layout: Layout, role: types.Role, container: Mapping[str, Any]) -> Any:
    """Return the requests and limits that a container has in its pods."""
    resources = copy.deepcopy(container.get("resources") or {})
    if container.get("name") == names.CONTAINER:
        pod_builder.request_devices(resources, layout.specs[role])
        growths = replica_records.read(layout.job.status, role).memory_growths
        policy = layout.job.spec.run_policy.out_of_memory
        if growths and policy is not None:
            memory.grow({"resources": resources}, policy, growths)
    limits = _numbers(resources.get("limits"))
    requests = {**limits, **_numbers(resources.get("requests"))}  # As the API server fills them in.
    return {**resources, "limits": limits, "requests": requests}


def _numbers(amounts: Mapping[str, Any] | None) -> dict[str, str]:
    """Normalize amounts, so that equal numbers such as 1 and 1000m are equal."""
    numbers = {}
    for name, amount in (amounts or {}).items():
        number = quantities.parse(str(amount))
        numbers[name] = str(amount if number is None else number)
    return numbers


def _fields(document: Mapping[str, Any], *keys: str) -> list[Any]:
    return [[key, document[key]] for key in keys if document.get(key)]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
