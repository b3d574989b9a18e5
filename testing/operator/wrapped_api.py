"""A client around another one, for tests in which requests meet trouble on their way."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from tfparallel_operator.api_server import client, credentials, resources

T = TypeVar("T")


class WrappedApi(client.Client):
    """Passes everything on; `_read` and `_write` are what a test puts in between."""

    def __init__(self, inner: client.Client) -> None:
        self._inner = inner

    @property
    def access(self) -> credentials.Access:
        return self._inner.access

    async def _read(self, do: Callable[[], Awaitable[T]]) -> T:
        return await do()

    async def _write(self, request: str, do: Callable[[], Awaitable[T]]) -> T:
        return await do()

    async def get(self, path: str) -> client.Object:
        return await self._read(lambda: self._inner.get(path))

    async def page(
        self,
        resource: resources.Resource,
        namespace: str | None,
        selector: str = "",
        place: str = "",
        fields: str = "",
    ) -> client.Listing:
        page = functools.partial(self._inner.page, resource, namespace, selector, place, fields)
        return await self._read(page)

    async def watch(
        self,
        resource: resources.Resource,
        namespace: str | None,
        version: str,
        selector: str = "",
        fields: str = "",
    ) -> AsyncIterator[client.WatchEvent]:
        async for event in self._inner.watch(resource, namespace, version, selector, fields):
            yield event

    async def create(
        self, resource: resources.Resource, namespace: str | None, manifest: Mapping[str, Any]
    ) -> client.Object:
        request = f"create {resource.path(namespace, manifest['metadata'].get('name', ''))}"
        return await self._write(request, lambda: self._inner.create(resource, namespace, manifest))

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
        await self._write(
            f"delete {resource.path(namespace, name)}",
            lambda: self._inner.delete(resource, namespace, name, uid, version, force=force),
        )

    async def patch(self, path: str, change: Mapping[str, Any]) -> client.Object:
        return await self._write(f"patch {path}", lambda: self._inner.patch(path, change))

    async def apply(self, path: str, manifest: Mapping[str, Any], manager: str) -> client.Object:
        request = f"apply {path}"
        return await self._write(request, lambda: self._inner.apply(path, manifest, manager))
