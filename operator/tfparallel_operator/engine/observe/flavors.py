"""Reads flavors of Kueue, which say on which nodes an admitted Workload may run."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core import observation
from tfparallel_operator.engine.observe import children

FLAVOR_SECONDS = 60.0
"""How long a flavor is cached."""


class Flavors:
    """ResourceFlavors by name, each read when it is needed."""

    def __init__(
        self,
        api: client.Client,
        followed: children.ChildIndex,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._children = followed
        self._clock = clock
        self._flavors: dict[str, tuple[float, observation.Flavor]] = {}

    async def read(
        self, workloads: Iterable[observation.Workload]
    ) -> dict[str, observation.Flavor]:
        """Return the flavors with which Workloads were admitted.

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
        entry = self._flavors.get(name)
        if entry is not None and self._clock() - entry[0] < FLAVOR_SECONDS:
            return entry[1]
        version = self._children.served(resources.WORKLOADS).api_version
        path = resources.RESOURCE_FLAVORS.at(version).path(name=name)
        spec: dict[str, Any] = (await self._api.get(path)).get("spec") or {}
        flavor = observation.Flavor(
            spec.get("nodeLabels") or {}, tuple(spec.get("tolerations") or ())
        )
        self._flavors[name] = self._clock(), flavor
        return flavor
