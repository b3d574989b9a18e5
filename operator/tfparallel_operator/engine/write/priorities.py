"""The priority of a Workload: Kueue needs a number, and a decision has the name of a class.

The number is read here, once for the write that needs it. If it were part of the observation, each
reconcile of a waiting job would read a class, or list all classes if the job names none. A missing
class is a refusal like any other.
"""

from collections.abc import Mapping

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision

_CLASSES = {
    names.OF_WORKLOADS: resources.WORKLOAD_PRIORITY_CLASSES,
    names.OF_PODS: resources.PRIORITY_CLASSES,
}
_OLDER_SOURCES = {
    names.OF_WORKLOADS: "kueue.x-k8s.io/workloadpriorityclass",
    names.OF_PODS: "scheduling.k8s.io/priorityclass",
}
"""The names of the classes' groups in v1beta1."""


class ClassNotFound(errors.Refused):
    """The priority class that a Workload names does not exist."""


async def with_priority(api: client.Client, manifest: decision.Manifest) -> decision.Manifest:
    """Return a Workload's manifest with the number of its priority, in its version of the API.

    Raises:
        ClassNotFound: its class does not exist.
        errors.ApiError: the class cannot be read.
    """
    spec = dict(manifest["spec"])
    version, reference = manifest["apiVersion"], spec.pop("priorityClassRef", None)
    search = _named_class(api, version, reference) if reference else _default_class(api)
    priority_class = await search
    spec["priority"] = 0
    if priority_class is not None:
        reference = reference or {"group": names.OF_PODS, "kind": "PriorityClass"}
        name = priority_class["metadata"]["name"]
        spec["priority"] = priority_class["value"]
        if version == resources.WORKLOADS.api_version:
            spec["priorityClassRef"] = {**reference, "name": name}
        else:
            spec["priorityClassName"] = name
            spec["priorityClassSource"] = _OLDER_SOURCES[reference["group"]]
    return {**manifest, "spec": spec}


async def _named_class(
    api: client.Client, version: str, reference: Mapping[str, str]
) -> client.Object:
    group, name = reference["group"], reference["name"]
    resource = _CLASSES[group]
    if group == names.OF_WORKLOADS:
        resource = resource.at(version)
    try:
        return await api.get(resource.path(name=name))
    except errors.NotFound as error:
        await api.served(resources.WORKLOADS)
        raise ClassNotFound(f"no PriorityClass with name {name} was found") from error


async def _default_class(api: client.Client) -> client.Object | None:
    """Return the default PriorityClass; None: the cluster has none."""
    listing = await api.list(resources.PRIORITY_CLASSES, None)
    defaults = [item for item in listing.items if item.get("globalDefault")]
    return min(defaults, key=lambda item: int(item["value"]), default=None)
