"""What the operator looks up where Kueue is installed: priorities by name, and flavors."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import decision, observation

FLAVOR_SECONDS = 60.0
"""How long what is known of a flavor is good enough."""

_SOURCES = {
    names.OF_WORKLOADS: resources.WORKLOAD_PRIORITY_CLASSES,
    names.OF_PODS: resources.PRIORITY_CLASSES,
}


class ClassNotFound(errors.Refused):
    """There is no priority class of the name that a Workload gives."""


async def prioritised(api: client.Client, manifest: decision.Manifest) -> decision.Manifest:
    """Return a Workload's manifest with the number of its priority, which Kueue orders by.

    Raises:
        ClassNotFound: its class does not exist.
        errors.ApiError: the class cannot be read.
    """
    spec = dict(manifest["spec"])
    name, source = spec.pop("priorityClassName"), spec.pop("priorityClassSource")
    found = await (_named_class(api, source, name) if name else _default_class(api))
    if found is None:
        spec["priority"] = 0
    else:
        spec["priorityClassName"] = found["metadata"]["name"]
        spec["priorityClassSource"] = source
        spec["priority"] = found["value"]
    return {**manifest, "spec": spec}


class Flavors:
    """ResourceFlavors by name, read when they are asked for."""

    def __init__(self, api: client.Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
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
        spec: dict[str, Any] = (
            await self._api.get(resources.RESOURCE_FLAVORS.path(name=name))
        ).get("spec") or {}
        flavor = observation.Flavor(
            spec.get("nodeLabels") or {}, tuple(spec.get("tolerations") or ())
        )
        self._known[name] = self._clock(), flavor
        return flavor


async def _named_class(api: client.Client, source: str, name: str) -> client.Object | None:
    try:
        return await api.get(_SOURCES[source].path(name=name))
    except errors.NotFound as error:
        if not await _serves_workloads(api):
            raise
        raise ClassNotFound(f"no PriorityClass with name {name} was found") from error


async def _serves_workloads(api: client.Client) -> bool:
    """Whether Kueue is installed at all."""
    try:
        await api.get(f"/apis/{resources.WORKLOADS.api_version}")
    except errors.NotFound:
        return False
    return True


async def _default_class(api: client.Client) -> client.Object | None:
    """Return the PriorityClass that pods have which name none."""
    found = await api.list(resources.PRIORITY_CLASSES, None)
    defaults = [item for item in found.items if item.get("globalDefault")]
    return min(defaults, key=lambda item: int(item["value"]), default=None)
