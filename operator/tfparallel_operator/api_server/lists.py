"""Lists of objects, read page by page, with pages as large as memory allows."""

import abc
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from tfparallel_operator.api_server import answers, resources


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """The objects of a list, or of a page of it, at one resource version."""

    items: tuple[dict[str, Any], ...]
    version: str
    continue_token: str = ""
    """The token for the next page; empty: this is the last."""
    size: int = 0
    """Bytes of the page; 0: unknown."""


class Lists(abc.ABC):
    """Reads lists page by page."""

    async def list(
        self,
        resource: resources.Resource,
        namespace: str | None,
        selector: str = "",
        fields: str = "",
    ) -> Listing:
        """Read all objects of a namespace, or of all namespaces, with these labels and fields."""
        items: list[dict[str, Any]] = []
        version = ""
        async for page in self.pages(resource, namespace, selector, fields):
            items += page.items
            version = page.version
        return Listing(tuple(items), version)

    async def pages(
        self,
        resource: resources.Resource,
        namespace: str | None,
        selector: str = "",
        fields: str = "",
        *,
        metadata_only: bool = False,
    ) -> AsyncIterator[Listing]:
        """Yield the same page by page, so that ten thousand objects need not be in memory at once.

        With `metadata_only` an item has its metadata alone, however large the object is.
        """
        continue_token = ""
        size = answers.PageSize(answers.FIRST_PAGE if resource == resources.JOBS else answers.PAGE)
        options: dict[str, Any] = {"metadata_only": metadata_only}
        while True:
            options["limit"] = size.limit
            try:
                page = await self.page(
                    resource, namespace, selector, continue_token, fields, **options
                )
            except answers.PageTooLargeError as error:
                size.shrink(error)
                continue
            yield page
            size.learn(len(page.items), page.size)
            continue_token = page.continue_token
            if not continue_token:
                return

    @abc.abstractmethod
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
    ) -> Listing:
        """Read one page; the previous page gives its continue token.

        Raises:
            answers.PageTooLargeError: request it again with a lower limit.
        """

    async def current_version(self, resource: resources.Resource, namespace: str | None) -> int:
        """Return the current resource version of the API server.

        A list without a version in its request is never stale. It comes from etcd's majority, or
        from a cache that has reached etcd's revision.
        """
        is_free = resource == resources.JOBS  # Their managed fields may nest as deep as they do.
        page = await self.page(resource, namespace, metadata_only=not is_free, limit=1)
        return int(page.version)
