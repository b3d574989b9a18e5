"""What the operator looks up where Kueue is installed: priorities by name, and flavors."""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision, observation
from tfparallel_operator.engine import children

FLAVOR_SECONDS = 60.0
"""How long what is known of a flavor is good enough."""

_CLASSES = {
    names.OF_WORKLOADS: resources.WORKLOAD_PRIORITY_CLASSES,
    names.OF_PODS: resources.PRIORITY_CLASSES,
}
_OLDER_SOURCES = {
    names.OF_WORKLOADS: "kueue.x-k8s.io/workloadpriorityclass",
    names.OF_PODS: "scheduling.k8s.io/priorityclass",
}
"""What v1beta1 calls the groups of the classes."""


class ClassNotFound(errors.Refused):
    """There is no priority class of the name that a Workload gives."""


async def prioritised(api: client.Client, manifest: decision.Manifest) -> decision.Manifest:
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


class Flavors:
    """ResourceFlavors by name, read when they are asked for."""

    def __init__(
        self,
        api: client.Client,
        followed: children.Children,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._children = followed
        self._clock = clock
        self._known: dict[str, tuple[float, observation.Flavor]] = {}

    async def of(self, workloads: Iterable[observation.Workload]) -> dict[str, observation.Flavor]:
        """Return the flavors that Workloads were admitted with.

        Raises:
            errors.ApiError: one cannot be read.
        """
        needed = {
            flavor
            for workload in workloads
            for admitted in workload.admission.values()
            for flavor in admitted.flavors
        }
        return {name: await self._one(name) for name in sorted(needed)}

    async def _one(self, name: str) -> observation.Flavor:
        known = self._known.get(name)
        if known is not None and self._clock() - known[0] < FLAVOR_SECONDS:
            return known[1]
        version = self._children.served(resources.WORKLOADS).api_version
        path = resources.RESOURCE_FLAVORS.at(version).path(name=name)
        spec: dict[str, Any] = (await self._api.get(path)).get("spec") or {}
        flavor = observation.Flavor(
            spec.get("nodeLabels") or {}, tuple(spec.get("tolerations") or ())
        )
        self._known[name] = self._clock(), flavor
        return flavor


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
    """Return the PriorityClass that pods have which name none."""
    listing = await api.list(resources.PRIORITY_CLASSES, None)
    defaults = [item for item in listing.items if item.get("globalDefault")]
    return min(defaults, key=lambda item: int(item["value"]), default=None)
