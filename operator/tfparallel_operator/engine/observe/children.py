"""What is known of the children of all jobs: an informer for each kind."""

import asyncio
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core import observation
from tfparallel_operator.engine.observe import informer, records


class Children:
    """Pods, PodGroups, Workloads, and the mere existence of the rest, by their job's uid."""

    def __init__(
        self,
        api: client.Client,
        namespaces: tuple[str, ...],
        changed: informer.Changed,
        clock: wall_clock.Clock = wall_clock.utc_now,
    ) -> None:
        self.pods = informer.Informer(
            api, resources.PODS, namespaces, functools.partial(_pod, clock), changed
        )
        self._services, self._policies = (
            informer.Informer(api, resource, namespaces, _exists, changed)
            for resource in (resources.SERVICES, resources.NETWORK_POLICIES)
        )
        self._configs = informer.Informer(
            api, resources.CONFIG_MAPS, namespaces, records.config, changed
        )
        self._groups = tuple(
            informer.Informer(api, resource, namespaces, _group(resource), changed, optional=True)
            for resource in resources.POD_GROUPS
        )
        self._workloads = informer.Informer(
            api, resources.WORKLOADS, namespaces, records.workload, changed, optional=True
        )
        informers: tuple[informer.Informer[Any], ...]
        informers = (self.pods, self._services, self._configs, self._policies)
        informers = (*informers, *self._groups, self._workloads)
        self._by_resource = {each.resource: each for each in informers}

    def of(self, uid: str) -> observation.Children:
        """Return everything that a job owns, as last seen."""
        configs = self._configs.of(uid)
        return observation.Children(
            pods=self.pods.of(uid),
            has_service=bool(self._services.of(uid)),
            has_config=bool(configs),
            config=next(iter(configs), None),
            has_policy=bool(self._policies.of(uid)),
            groups=tuple(group for each in self._groups for group in each.of(uid)),
            workloads=self._workloads.of(uid),
        )

    def served(self, resource: resources.Resource) -> resources.Resource:
        """Return a resource in the version that the API server serves."""
        match = self._by_resource.get(resource)
        return resource if match is None else match.served

    def learn(self, resource: resources.Resource, item: Mapping[str, Any]) -> None:
        """Take in the answer to a write."""
        self._by_resource[resource].learn(item)

    async def run(self) -> None:
        """Follow them forever."""
        async with asyncio.TaskGroup() as group:
            for each in self._by_resource.values():
                group.create_task(each.run())

    @property
    def synced(self) -> bool:
        """Whether everything that there was at the start has been seen."""
        return all(each.synced for each in self._by_resource.values())

    async def wait_synced(self) -> None:
        """Return once `synced` holds."""
        for each in self._by_resource.values():
            await each.wait_synced()

    async def refresh(self) -> None:
        """List everything again, for the watches may lag behind.

        Raises:
            errors.ApiError: a list cannot be read.
        """
        for each in self._by_resource.values():
            await each.refresh()

    def silence(self, now: float) -> float:
        """Return the seconds since the quietest of them last heard or tried anything."""
        return max(self.silences(now).values())

    def silences(self, now: float) -> dict[str, float]:
        """Return the same for each resource that has to be there, by its plural."""
        return {
            resource.plural: each.silence(now)
            for resource, each in self._by_resource.items()
            if not each.optional
        }


def _pod(clock: wall_clock.Clock, item: Mapping[str, Any]) -> observation.Pod | None:
    """A node's clock may be ahead: nothing has ended later than it was seen."""
    pod = records.pod(item)
    if pod is None or pod.exit is None or pod.exit.finished_at is None:
        return pod
    now = clock()
    if pod.exit.finished_at <= now:
        return pod
    return dataclasses.replace(pod, exit=dataclasses.replace(pod.exit, finished_at=now))


def _group(resource: resources.Resource) -> informer.Slim[observation.Group]:
    return functools.partial(records.group, resource.api_version)


def _exists(item: Mapping[str, Any]) -> bool | None:
    """An object that is being deleted does not count: the job needs another once it is gone."""
    return None if records.deleting(item) else True
