"""A client whose process dies after some write: the write is done, nobody hears the answer."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from tfparallel_operator.engine import client, credentials, resources


class Killed(BaseException):
    """The process is gone; nothing in it may catch this."""


class CrashingApi(client.Client):
    """Passes everything on until its last write; after that nothing."""

    def __init__(self, inner: client.Client, writes: int | None) -> None:
        self._inner = inner
        self._left = writes

    @property
    def access(self) -> credentials.Access:
        return self._inner.access

    async def get(self, path: str) -> client.Object:
        self._alive()
        return await self._inner.get(path)

    async def list(
        self, resource: resources.Resource, namespace: str | None, selector: str = ""
    ) -> client.Listing:
        self._alive()
        return await self._inner.list(resource, namespace, selector)

    async def watch(
        self, resource: resources.Resource, namespace: str | None, version: str, selector: str = ""
    ) -> AsyncIterator[client.WatchEvent]:
        async for event in self._inner.watch(resource, namespace, version, selector):
            yield event

    async def create(
        self, resource: resources.Resource, namespace: str | None, manifest: Mapping[str, Any]
    ) -> client.Object:
        self._alive()
        answer = await self._inner.create(resource, namespace, manifest)
        self._written()
        return answer

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
        self._alive()
        await self._inner.delete(resource, namespace, name, uid, version, force=force)
        self._written()

    async def patch(self, path: str, change: Mapping[str, Any]) -> client.Object:
        self._alive()
        answer = await self._inner.patch(path, change)
        self._written()
        return answer

    def _alive(self) -> None:
        if self._left == 0:
            raise Killed

    def _written(self) -> None:
        if self._left is not None:
            # Writes that were under way together with the last one are done, but not heard of.
            self._left = max(0, self._left - 1)
            if not self._left:
                raise Killed
