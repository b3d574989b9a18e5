"""An API server in memory with what the engine relies on: versions, conditions, watches, owners.

Pods that are deleted stay, terminating, until a test lets them go; children of a job that is gone
are collected at once.
"""

import asyncio
import bisect
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import orjson

from tfparallel_operator.api import types
from tfparallel_operator.api_server import answers, client, errors, lists, resources, streams
from tfparallel_operator.engine.observe import owned

T = TypeVar("T")

RESOURCES = (
    resources.JOBS,
    resources.PODS,
    resources.SERVICES,
    resources.CONFIG_MAPS,
    resources.CLAIMS,
    resources.NETWORK_POLICIES,
    resources.EVENTS,
    resources.SECRETS,
    resources.NODES,
    resources.LEASES,
    owned.POD_GROUPS[types.GangScheduler.COSCHEDULING],
    resources.WORKLOADS,
    resources.RESOURCE_FLAVORS,
    resources.WORKLOAD_PRIORITY_CLASSES,
    resources.PRIORITY_CLASSES,
)


class MemoryApi(client.Client):
    """The client and the server in one."""

    def __init__(self) -> None:
        self._objects: dict[str, client.Object] = {}
        self._history: list[tuple[int, resources.Resource, str, client.Object]] = []
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self.page_size = answers.PAGE
        self.versions: dict[resources.Resource, str] = {}
        """The versions that are served of resources whose newest is not."""
        self.forgotten = 0
        """Watches from this version or an older one are told that it is too old."""
        self.log: list[str] = []
        """Every write that was done, in order."""
        self.created: list[tuple[str, str, str]] = []
        """Pods created: name, attempt, replica attempt."""

    @property
    def version(self) -> int:
        return self._history[-1][0] if self._history else 0

    async def get(self, path: str, *, metadata_only: bool = False) -> client.Object:
        if path.count("/") == 3:
            return self._discovery(path.removeprefix("/apis/"))
        served = _copied(self._find(path))
        return {"metadata": served["metadata"]} if metadata_only else served

    def _discovery(self, version: str) -> client.Object:
        """Return what a version of a group serves."""
        served = (
            (self.versions.get(resource, resource.api_version), resource) for resource in RESOURCES
        )
        kinds = [{"name": resource.plural} for name, resource in served if name == version]
        if not kinds:
            raise errors.NotFound(f"{version} is not served", status=404)
        return {"kind": "APIResourceList", "resources": kinds}

    async def page(
        self,
        resource: resources.Resource,
        namespace: str | None,
        selector: str = "",
        continue_token: str = "",
        fields: str = "",
        *,
        metadata_only: bool = False,
        limit: int = answers.PAGE,
    ) -> lists.Listing:
        items = [
            _shown(item, metadata_only)
            for path, item in self._objects.items()
            if _matches(path, item, resource, namespace, selector) and _has_fields(item, fields)
        ]
        start = int(continue_token or 0)
        end = start + min(limit, self.page_size)
        continuation = str(end) if end < len(items) else ""
        return lists.Listing(tuple(items[start:end]), str(self.version), continuation)

    async def watch(
        self,
        resource: resources.Resource,
        namespace: str | None,
        version: str,
        selector: str = "",
        fields: str = "",
        *,
        metadata_only: bool = False,
    ) -> AsyncIterator[streams.WatchEvent]:
        assert not fields, "the operator watches by labels alone"
        sent_version = int(version)
        position = bisect.bisect_right(self._history, sent_version, key=lambda entry: entry[0])
        while True:
            if sent_version < self.forgotten:
                raise errors.Expired(f"too old resource version: {sent_version}")
            while position < len(self._history):
                sent_version, changed, kind, item = self._history[position]
                position += 1
                if changed == resource and _is_chosen(item, namespace, selector):
                    yield streams.WatchEvent(kind, _shown(item, metadata_only))
            await self._changed.wait()

    async def create(
        self,
        resource: resources.Resource,
        namespace: str | None,
        manifest: Mapping[str, Any],
        *,
        metadata_only: bool = False,
    ) -> client.Object:
        item = _copied(dict(manifest))
        if resource == resources.CORE_EVENTS:
            resource, item = resources.EVENTS, _newer_event(item)
        metadata = item["metadata"]
        path = resource.path(namespace, metadata["name"])
        if path in self._objects:
            raise errors.AlreadyExists(f"{path} already exists", status=409)
        metadata.update(uid=f"uid-{next(self._numbers)}", generation=1)
        metadata.setdefault("namespace", namespace)
        if resource == resources.PODS:
            item["status"] = {"phase": "Pending"}
            labels = metadata["labels"]
            attempts = [v for k, v in sorted(labels.items()) if k.endswith("attempt")]
            self.created.append((metadata["name"], *attempts))
        self._objects[path] = item
        self._record(resource, "ADDED", item, f"create {path}")
        return _shown(item, metadata_only)

    async def delete(
        self,
        resource: resources.Resource,
        namespace: str,
        name: str,
        uid: str,
        version: str | None = None,
        *,
        force: bool = False,
    ) -> None:
        path = resource.path(namespace, name)
        item = self._find(path)
        metadata = item["metadata"]
        if metadata["uid"] != uid or version not in (None, metadata["resourceVersion"]):
            raise errors.Conflict("precondition failed", status=409)
        if resource == resources.PODS and not force:
            if "deletionTimestamp" not in metadata:
                metadata["deletionTimestamp"] = "2026-11-21T10:00:00Z"
                self._record(resource, "MODIFIED", item, f"delete {path}")
            return
        self.remove(path, f"delete {path}")

    async def patch(self, path: str, change: Mapping[str, Any]) -> client.Object:
        item = self._find(path.removesuffix("/status"))
        condition = change.get("metadata", {}).get("resourceVersion")
        if condition not in (None, item["metadata"]["resourceVersion"]):
            raise errors.Conflict("the object has been modified", status=409)
        fields = {key: value for key, value in change.items() if key != "metadata"}
        merge(item, fields)
        annotations = change.get("metadata", {}).get("annotations", {})
        if annotations:
            merge(item["metadata"].setdefault("annotations", {}), annotations)
        if "spec" in fields:
            item["metadata"]["generation"] += 1
        self._record(_resource(path), "MODIFIED", item, f"patch {path}")
        return _copied(item)

    async def apply(self, path: str, manifest: Mapping[str, Any], manager: str) -> client.Object:
        item = self._find(path.removesuffix("/status"))
        if manifest["metadata"].get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
            raise errors.Conflict("precondition failed: uid", status=409)
        item.setdefault("status", {}).update(_copied(manifest["status"]))
        self._record(_resource(path), "MODIFIED", item, f"apply {path}")
        return _copied(item)

    def remove(self, path: str, request: str = "") -> None:
        """Remove an object and what belongs to it."""
        item = self._objects.pop(path)
        self._record(_resource(path), "DELETED", item, request)
        for child in [
            child
            for child, other in self._objects.items()
            for owner in other["metadata"].get("ownerReferences", ())
            if owner["uid"] == item["metadata"]["uid"]
        ]:
            self.remove(child)

    def first_version(
        self, resource: resources.Resource, holds: Callable[[client.Object], bool]
    ) -> int:
        """Return the first version at which something held of an object."""
        return next(
            number
            for number, changed, _, item in self._history
            if changed == resource and "status" in item and holds(item)
        )

    def object(self, path: str) -> client.Object:
        """Return an object itself: `touch` tells watchers what a test changes in it."""
        return self._find(path)

    def write_status(self, pod: client.Object, **status: Any) -> None:
        """Write a pod's status, as the kubelet does."""
        pod["status"] = status
        self.touch(resources.PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def touch(self, path: str) -> None:
        """Tell watchers of an object that a test has changed."""
        self._record(_resource(path), "MODIFIED", self._find(path), "")

    def let_go(self) -> None:
        """End the pods that are being deleted."""
        for path, item in list(self._objects.items()):
            if "deletionTimestamp" in item["metadata"]:
                self.remove(path)

    def items(self, resource: resources.Resource) -> tuple[client.Object, ...]:
        """Return all objects of a resource, in the order of their names."""
        items = [
            item for path, item in self._objects.items() if _matches(path, item, resource, None, "")
        ]
        return tuple(sorted(items, key=lambda item: str(item["metadata"]["name"])))

    def _find(self, path: str) -> client.Object:
        if path not in self._objects:
            raise errors.NotFound(f"{path} not found", status=404)
        return self._objects[path]

    def _record(
        self, resource: resources.Resource, kind: str, item: client.Object, request: str
    ) -> None:
        number = next(self._numbers)
        item["metadata"]["resourceVersion"] = str(number)
        self._history.append((number, resource, kind, _copied(item)))
        if request:
            self.log.append(request)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


_RENAMED = {
    "message": "note",
    "involvedObject": "regarding",
    "reportingComponent": "reportingController",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
"""Fields of an Event of v1, as events.k8s.io/v1 calls them."""


def _newer_event(event: client.Object) -> client.Object:
    """Return an Event of v1 as events.k8s.io/v1 serves it."""
    renamed = {_RENAMED.get(field, field): value for field, value in event.items()}
    return {**renamed, "apiVersion": resources.EVENTS.api_version}


def _resource(path: str) -> resources.Resource:
    return next(resource for resource in RESOURCES if f"/{resource.plural}/" in path)


def _matches(
    path: str,
    item: client.Object,
    resource: resources.Resource,
    namespace: str | None,
    selector: str,
) -> bool:
    return (
        f"/{resource.plural}/" in path
        and path.startswith(resource.path().removesuffix(resource.plural))
        and _is_chosen(item, namespace, selector)
    )


def _has_fields(item: client.Object, fields: str) -> bool:
    pairs = (field.split("=") for field in fields.split(",") if field)
    return all(_value(item, path) == value for path, value in pairs)


def _value(item: client.Object, path: str) -> Any:
    return functools.reduce(lambda value, key: value.get(key, {}), path.split("."), item)


def _is_chosen(item: client.Object, namespace: str | None, selector: str) -> bool:
    key, _, value = selector.partition("=")
    metadata = item["metadata"]
    return namespace in (None, metadata["namespace"]) and (
        not selector or metadata.get("labels", {}).get(key) == value
    )


def _shown(item: client.Object, metadata_only: bool) -> client.Object:
    return _copied({"metadata": item["metadata"]} if metadata_only else item)


def _copied(item: T) -> T:
    """A copy as the API server's JSON makes it; `copy.deepcopy` takes ten times as long."""
    copy: T = orjson.loads(orjson.dumps(item, option=orjson.OPT_NON_STR_KEYS))
    return copy


def merge(target: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Apply a merge patch."""
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            inner = target.setdefault(key, {})
            merge(inner, value)
        else:
            target[key] = _copied(value)
