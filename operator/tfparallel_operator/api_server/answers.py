"""Reads what the API server answers: jobs through the gate, and pages bounded in bytes."""

import dataclasses

import aiohttp
import orjson

from tfparallel_operator.api import envelopes, gate, names, raw_json
from tfparallel_operator.api_server import errors

PAGE = 200
"""Objects in one answer of a list: bounds memory on both sides, and how long reading takes."""

PAGE_BYTES = 2 * 2**20
"""The client asks for a larger page of several objects again, in smaller ones. Reading a page may
need 30 times as much memory."""

FIRST_PAGE = 20
"""Jobs in the first page of a list."""

MAX_RETRY_AFTER_SECONDS = 60
"""How long the API server, or a proxy before it, can have a request wait that it refuses."""

_LONGEST_NUMBER = 9
"""Digits of such a time that are read."""

_STORED = ("get", "patch", "apply")
"""What is answered by an object that is stored."""


class PageTooLargeError(Exception):
    """A page cannot be read as a whole."""

    def __init__(self, size: int) -> None:
        super().__init__(f"a page has at least {size} bytes")
        self.size = size
        """Bytes that were read; 0: it is not their number."""


@dataclasses.dataclass(slots=True)
class PageSize:
    """How many objects the next page may have."""

    limit: int = FIRST_PAGE

    def learn(self, count: int, size: int) -> None:
        """Ask for as many as half a page takes, after a page of so many objects and bytes."""
        fitting = PAGE_BYTES // 2 * max(count, 1) // max(size, 1)
        self.limit = max(1, min(fitting, 8 * self.limit, PAGE))

    def shrink(self, error: PageTooLargeError) -> None:
        """Ask for fewer, after a page that could not be read."""
        self.limit = max(1, self.limit // 8) if error.size else 1


async def raise_for_status(response: aiohttp.ClientResponse) -> None:
    """Raise what an answer says that is no success."""
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
    """Return the seconds of a header Retry-After; None for none, and for a date."""
    if not text.isdecimal():
        return None
    return float(min(int(text[:_LONGEST_NUMBER]), MAX_RETRY_AFTER_SECONDS))


async def read(response: aiohttp.ClientResponse, verb: str, plural: str, limit: int) -> gate.Body:
    """Return the document of an answer.

    Args:
        response: of the API server.
        verb: what was asked for.
        plural: the resource; empty: it is about none.
        limit: the most objects of a list.

    Raises:
        PageTooLargeError: it is a page of several objects, and has to be asked for in smaller ones.
        errors.ApiError: it says that the request has failed.
        errors.Unavailable: it is not what an API server answers.
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
    """Return a document; one of a single job may be as large and deep as it likes."""
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
    """Return the error of an answer that is a proxy's page."""
    return errors.Unavailable(f"the answer from {response.url} is not JSON, as an API server's is")
