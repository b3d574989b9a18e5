"""Lists of objects: read page by page, each as large as memory allows."""

import abc
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from tfparallel_operator.api_server import answers, resources


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """What a list, or a page of it, has found at one resource version."""

    items: tuple[dict[str, Any], ...]
    version: str
    continue_token: str = ""
    """Where the next page begins; empty: this is the last."""
    size: int = 0
    """Bytes of the page; 0: it is not known."""


class Lists(abc.ABC):
    """Reads lists by their pages."""

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
        """Read the same page by page: ten thousand objects need not be there at once.

        With `metadata_only` an item holds its metadata alone, however large the object is.
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
            answers.PageTooLargeError: it has to be read again with a lower limit.
        """

    async def current_version(self, resource: resources.Resource, namespace: str | None) -> int:
        """Return the resource version that the API server has come to.

        A list that asks for none is never answered from behind. It comes from etcd's majority, or
        from a cache once that has come to etcd's revision.
        """
        is_free = resource == resources.JOBS  # Their managed fields may nest as deep as they do.
        page = await self.page(resource, namespace, metadata_only=not is_free, limit=1)
        return int(page.version)
