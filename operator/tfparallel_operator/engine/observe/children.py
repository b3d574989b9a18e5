"""The observed children of all jobs, with an informer for each kind.

A child is in its job's namespace, names the job and the job's uid as its controller, and has a name
that the operator gives. Any other object that names a job counts for nothing, for example one that
a person of another namespace has created.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import client, resources
from tfparallel_operator.core import observation
from tfparallel_operator.core.pods import config
from tfparallel_operator.core.queue import gang, workload
from tfparallel_operator.engine.observe import agent_reports, index, informer, owned, records

T = TypeVar("T")

IsName = Callable[[str, str], bool]
"""Whether an object's name is one that the operator gives for a job's name."""


class ChildIndex:
    """The pods, PodGroups and Workloads of each job, and only whether its other children exist."""

    def __init__(
        self,
        api: client.Client,
        namespaces: tuple[str, ...],
        changed: index.Changed,
        clock: wall_clock.Clock = wall_clock.utc_now,
        rewound: informer.Rewound = lambda: None,
    ) -> None:
        follow = functools.partial(
            informer.Informer, api, namespaces=namespaces, changed=changed, rewound=rewound
        )
        self.pods = follow(resources.PODS, slim=functools.partial(_pod, clock), keeps_hidden=True)
        # Of these, others may make large ones with the same label.
        follow_metadata = functools.partial(follow, metadata_only=True)
        self._services = follow_metadata(resources.SERVICES, slim=_named(_is_service, _exists))
        self._policies = follow_metadata(
            resources.NETWORK_POLICIES, slim=_named(_is_config, _exists)
        )
        self._configs = follow_metadata(
            resources.CONFIG_MAPS, slim=_named(_is_config, records.config)
        )
        self._groups = tuple(
            follow(resource, slim=_group(resource), optional=True)
            for resource in owned.POD_GROUPS.values()
        )
        self._workloads = follow(
            resources.WORKLOADS, slim=_named(_is_workload, records.workload), optional=True
        )
        informers: tuple[informer.Informer[Any], ...]
        informers = (self.pods, self._services, self._configs, self._policies)
        informers = (*informers, *self._groups, self._workloads)
        self.run_ends = agent_reports.AgentReports()
        self._by_resource = {follower.resource: follower for follower in informers}

    def for_job(self, job: records.Owner) -> observation.Children:
        """Return the objects that a job owns, as last seen."""
        return observation.Children(
            pods=self.pods.for_owner(job),
            has_service=bool(self._services.for_owner(job)),
            config=next(iter(self._configs.for_owner(job)), None),
            has_policy=bool(self._policies.for_owner(job)),
            groups=tuple(group for follower in self._groups for group in follower.for_owner(job)),
            workloads=self._workloads.for_owner(job),
        )

    def served(self, resource: resources.Resource) -> resources.Resource:
        """Return a resource in the version that the API server serves."""
        match = self._by_resource.get(resource)
        return resource if match is None else match.served

    def learn(self, resource: resources.Resource, item: Mapping[str, Any]) -> None:
        """Store the response to a write."""
        self._by_resource[resource].learn(item)

    def watches(self) -> Iterator[informer.Watch]:
        """Yield the streams that follow the resources forever."""
        for follower in self._by_resource.values():
            yield from follower.watches()

    @property
    def synced(self) -> bool:
        """Whether the first lists are complete."""
        return all(follower.synced for follower in self._by_resource.values())

    async def wait_synced(self) -> None:
        """Return once `synced` holds."""
        for follower in self._by_resource.values():
            await follower.wait_synced()

    async def refresh(self) -> None:
        """List everything again, because the watches may lag behind.

        Raises:
            errors.ApiError: a list cannot be read.
        """
        for follower in self._by_resource.values():
            await follower.refresh()

    def silence(self, now: float) -> float:
        """Return the seconds since the quietest informer last received or tried anything."""
        return max(self.silences(now).values())

    def silences(self, now: float) -> dict[str, float]:
        """Return the same for each resource that must be installed, by its plural."""
        return {
            resource.plural: follower.silence(now)
            for resource, follower in self._by_resource.items()
            if not follower.optional
        }


def _pod(clock: wall_clock.Clock, item: Mapping[str, Any]) -> observation.Pod | None:
    """Convert a pod. If the clock of its node is ahead, it counts as ended now."""
    pod, job = records.pod(item), records.owner(item)
    if pod is None or job is None or pod.name != pod.replica.pod_name(job.name):
        return None
    if pod.exit is None or pod.exit.finished_at is None:
        return pod
    now = clock()
    if pod.exit.finished_at <= now:
        return pod
    return dataclasses.replace(pod, exit=dataclasses.replace(pod.exit, finished_at=now))


def _group(resource: resources.Resource) -> index.Slim[observation.Group]:
    return _named(gang.is_group_name, functools.partial(records.group, resource.api_version))


def _named(is_name: IsName, slim: index.Slim[T]) -> index.Slim[T]:
    """Leave out objects whose name the operator does not give."""

    def slim_named(item: Mapping[str, Any]) -> T | None:
        job = records.owner(item)
        return slim(item) if job and is_name(item["metadata"]["name"], job.name) else None

    return slim_named


def _is_service(name: str, job_name: str) -> bool:
    return name == job_name


def _is_config(name: str, job_name: str) -> bool:
    return name == config.name(job_name)


def _is_workload(name: str, job_name: str) -> bool:
    return name == workload.name(job_name)


def _exists(item: Mapping[str, Any]) -> bool | None:
    """Whether an object exists; None: it is being deleted, so the job soon needs another one."""
    return None if records.deleting(item) else True
