"""Parses responses of the API server: jobs pass the gate, and pages are bounded in bytes."""

import dataclasses

import aiohttp
import orjson

from tfparallel_operator.api import envelopes, gate, names, raw_json
from tfparallel_operator.api_server import errors

PAGE = 200
"""Objects in one page of a list, which bounds memory on both sides and the time to parse it."""

PAGE_BYTES = 2 * 2**20
"""Maximum size of a page of several objects; a larger one is requested again in smaller pages.
Parsing a page may need 30 times as much memory."""

FIRST_PAGE = 20
"""Jobs in the first page of a list."""

MAX_RETRY_AFTER_SECONDS = 60
"""Maximum pause that a response may ask for with Retry-After."""

_LONGEST_NUMBER = 9
"""Maximum number of digits of Retry-After."""

_STORED = ("get", "patch", "apply")
"""What is answered by an object that is stored."""


class PageTooLargeError(Exception):
    """A page is too large to read at once."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a page has at least {size} bytes")
        self.size = size
        """Bytes of the page; 0: unknown."""


@dataclasses.dataclass(slots=True)
class PageSize:
    """The number of objects of the next page."""

    limit: int = FIRST_PAGE

    def learn(self, count: int, size: int) -> None:
        """Choose a number that fills half a page, given the objects and bytes of the last one."""
        fitting = PAGE_BYTES // 2 * max(count, 1) // max(size, 1)
        self.limit = max(1, min(fitting, 8 * self.limit, PAGE))

    def shrink(self, error: PageTooLargeError) -> None:
        """Choose a smaller number, after a page that was too large."""
        self.limit = max(1, self.limit // 8) if error.size else 1


async def raise_for_status(response: aiohttp.ClientResponse) -> None:
    """Raise the error of a response, unless it is a success."""
    if response.status < 300:
        return
    try:
        body = orjson.loads(await response.read())
    except orjson.JSONDecodeError:
        body = {}
    raise errors.from_answer(
        response.status,
        body if isinstance(body, dict) else {},
        _read_pause(response.headers.get("Retry-After", "")),
    )


def _read_pause(text: str) -> float | None:
    """Return the seconds of a header Retry-After; None: it is absent, or a date."""
    if not text.isdecimal():
        return None
    return float(min(int(text[:_LONGEST_NUMBER]), MAX_RETRY_AFTER_SECONDS))


async def read(response: aiohttp.ClientResponse, verb: str, plural: str, limit: int) -> gate.Body:
    """Return the document of a response.

    Args:
        response: of the API server.
        plural: of the resource; empty: none.
        limit: the maximum number of objects of a list.

    Raises:
        PageTooLargeError: a page of several objects is too large; request smaller ones.
        errors.ApiError: the request has failed.
        errors.Unavailable: the response is not from an API server.
    """
    is_page = verb == "list" and limit > 1
    text = await (_read_page(response) if is_page else response.read())
    try:
        document = _parse(text, verb, plural, limit)
        if envelopes.is_failure(document):
            code = document.get("code")
            raise errors.from_answer(code if isinstance(code, int) else 0, document)
        if verb == "list":
            document = {**_admit_items(envelopes.check_list(document), plural), "size": len(text)}
        elif plural and verb in _STORED:
            envelopes.check_object(document)
    except orjson.JSONDecodeError as error:
        if is_page and plural == names.PLURAL and text.lstrip()[:1] == b"{":
            raise PageTooLargeError(0) from error  # Most likely a job nests too deep.
        raise _no_json(response) from error
    except raw_json.BrokenError as error:
        raise _no_json(response) from error
    return document


def _parse(text: bytes, verb: str, plural: str, limit: int) -> gate.Body:
    """Return a document. A single job may have any size and depth, because it passes the gate."""
    if plural == names.PLURAL and verb != "list":
        return gate.read_job(text)
    if plural == names.PLURAL and limit == 1:
        return gate.read_list_of_one(text)
    return envelopes.check_document(orjson.loads(text))


def _admit_items(listing: gate.Body, plural: str) -> gate.Body:
    if plural != names.PLURAL:
        return listing
    return {**listing, "items": [gate.admit(item) for item in listing["items"] or ()]}


async def _read_page(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > PAGE_BYTES:
            response.close()
            raise PageTooLargeError(size)
    return b"".join(parts)


def _no_json(response: aiohttp.ClientResponse) -> errors.Unavailable:
    """Return the error for a response that is a proxy's page."""
    return errors.Unavailable(f"the answer from {response.url} is not JSON, as an API server's is")
