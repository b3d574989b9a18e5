"""What is known of the children of all jobs: an informer for each kind."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.core import observation
from tfparallel_operator.engine import client, informer, observe, resources


class Children:
    """Pods, and the mere existence of the other children, by the uid of their job."""

    def __init__(
        self, api: client.Client, namespaces: tuple[str, ...], changed: informer.Changed
    ) -> None:
        self.pods = informer.Informer(api, resources.PODS, namespaces, observe.pod, changed)
        self._services, self._configs, self._policies = (
            informer.Informer(api, resource, namespaces, _exists, changed)
            for resource in (
                resources.SERVICES,
                resources.CONFIG_MAPS,
                resources.NETWORK_POLICIES,
            )
        )
        self._by_resource: dict[resources.Resource, informer.Informer[Any]] = {
            found.resource: found
            for found in (self.pods, self._services, self._configs, self._policies)
        }

    def of(self, uid: str) -> observation.Children:
        """Return everything that a job owns, as last seen."""
        return observation.Children(
            pods=self.pods.of(uid),
            has_service=bool(self._services.of(uid)),
            has_config=bool(self._configs.of(uid)),
            has_policy=bool(self._policies.of(uid)),
        )

    def learn(self, resource: resources.Resource, item: Mapping[str, Any]) -> None:
        """Take in the answer to a write."""
        self._by_resource[resource].learn(item)

    async def run(self) -> None:
        """Follow them for ever."""
        async with asyncio.TaskGroup() as group:
            for found in self._by_resource.values():
                group.create_task(found.run())

    @property
    def synced(self) -> bool:
        """Whether everything that there was at the start has been seen."""
        return all(found.synced for found in self._by_resource.values())

    async def wait_synced(self) -> None:
        """Return once `synced` holds."""
        for found in self._by_resource.values():
            await found.wait_synced()

    async def refresh(self) -> None:
        """List everything anew, for what the watches tell may lag behind what there is.

        Raises:
            errors.ApiError: a list cannot be read.
        """
        for found in self._by_resource.values():
            await found.refresh()

    def silence(self, now: float) -> float:
        """Return the seconds since the quietest informer last heard or tried anything."""
        return max(self.silences(now).values())

    def silences(self, now: float) -> dict[str, float]:
        """Return the same for each resource, by its plural."""
        return {one.plural: found.silence(now) for one, found in self._by_resource.items()}


def _exists(item: Mapping[str, Any]) -> bool | None:
    """One that is being deleted no longer counts: it has to be made anew once it is gone."""
    return None if observe.deleting(item) else True
