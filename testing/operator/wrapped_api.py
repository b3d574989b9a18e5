"""A client around another one, for tests in which requests meet trouble on their way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from tfparallel_operator.api_server import client, credentials, lists, resources, streams

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

    async def get(self, path: str, **more: Any) -> client.Object:
        return await self._read(lambda: self._inner.get(path, **more))

    async def page(self, *arguments: Any, **more: Any) -> lists.Listing:
        return await self._read(lambda: self._inner.page(*arguments, **more))

    async def watch(self, *arguments: Any, **more: Any) -> AsyncIterator[streams.WatchEvent]:
        async for event in self._inner.watch(*arguments, **more):
            yield event

    async def create(
        self,
        resource: resources.Resource,
        namespace: str | None,
        manifest: Mapping[str, Any],
        **more: Any,
    ) -> client.Object:
        request = f"create {resource.path(namespace, manifest['metadata'].get('name', ''))}"
        return await self._write(
            request, lambda: self._inner.create(resource, namespace, manifest, **more)
        )

    async def delete(
        self, resource: resources.Resource, namespace: str, name: str, *arguments: Any, **more: Any
    ) -> None:
        await self._write(
            f"delete {resource.path(namespace, name)}",
            lambda: self._inner.delete(resource, namespace, name, *arguments, **more),
        )

    async def patch(self, path: str, *arguments: Any) -> client.Object:
        return await self._write(f"patch {path}", lambda: self._inner.patch(path, *arguments))

    async def apply(self, path: str, *arguments: Any) -> client.Object:
        return await self._write(f"apply {path}", lambda: self._inner.apply(path, *arguments))
