"""Reads what the API server answers: jobs through the gate, and pages of them bounded in bytes."""

import dataclasses

import aiohttp
import orjson

from tfparallel_operator.api import gate, names, raw_json
from tfparallel_operator.api_server import errors

PAGE = 200
"""Objects in one answer of a list: bounds memory on both sides, and how long reading takes."""

PAGE_BYTES = 2 * 2**20
"""The client asks for a larger page of several jobs again, in smaller ones. Reading a page may need
30 times as much memory."""

FIRST_PAGE = 20


class PageTooLargeError(Exception):
    """A page of jobs cannot be read as a whole."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a page has at least {size} bytes")
        self.size = size
        """Bytes that were read; 0: it is not their number."""


@dataclasses.dataclass(slots=True)
class PageSize:
    """How many jobs the next page may have."""

    limit: int = FIRST_PAGE

    def learn(self, count: int, size: int) -> None:
        """Ask for as many jobs as half a page takes, after a page of so many jobs and bytes."""
        fitting = PAGE_BYTES // 2 * max(count, 1) // max(size, 1)
        self.limit = max(1, min(fitting, 8 * self.limit, PAGE))

    def shrink(self, error: PageTooLargeError) -> None:
        """Ask for fewer jobs, after a page that could not be read."""
        self.limit = max(1, self.limit // 8) if error.size else 1


async def read(response: aiohttp.ClientResponse, verb: str, plural: str, limit: int) -> gate.Body:
    """Return the document of an answer.

    Args:
        response: of the API server.
        verb: what was asked for.
        plural: the resource.
        limit: the most objects of a list.

    Raises:
        PageTooLargeError: it is a page of several jobs, and has to be asked for in smaller ones.
        errors.Unavailable: it is no JSON.
    """
    if plural != names.PLURAL:
        return _parse(await response.read(), response)
    try:
        if verb != "list":
            return gate.read_job(await response.read())
        if limit == 1:
            text = await response.read()
            return {**gate.read_list_of_one(text), "size": len(text)}
        return await _read_page(response)
    except raw_json.BrokenError as error:
        raise _no_json(response) from error


async def _read_page(response: aiohttp.ClientResponse) -> gate.Body:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > PAGE_BYTES:
            response.close()
            raise PageTooLargeError(size)
    try:
        page: gate.Body = orjson.loads(b"".join(parts))
    except orjson.JSONDecodeError as error:
        raise PageTooLargeError(0) from error  # Most likely a job nests too deep.
    return {**page, "items": [gate.admit(item) for item in page["items"]], "size": size}


def _parse(text: bytes, response: aiohttp.ClientResponse) -> gate.Body:
    try:
        document: gate.Body = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _no_json(response) from error
    return document


def _no_json(response: aiohttp.ClientResponse) -> errors.Unavailable:
    """Return the error of an answer that is a proxy's page."""
    return errors.Unavailable(f"the answer from {response.url} is not JSON, as an API server's is")
