"""The HTTP session with which kopf watches jobs: each event passes the gate before kopf reads it.

kopf parses lists and lines of a watch by `json.loads`, which is recursive, and exits if one of them
is invalid. So this session answers with JSON that is always valid. The sweeper reads the lists, in
pages of bounded size. kopf needs only the version from which to watch, because no handler needs
more.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import aiohttp
import orjson

from tfparallel_operator.api import gate, names, raw_json
from tfparallel_operator.api_server import errors, resources

_LOG = logging.getLogger(__name__)

LIST_PAUSE_SECONDS = 2.0
"""Pause after a failed list, because kopf retries at once."""

LARGE_LINE_BYTES = 65_536
"""A longer line is parsed in a thread, to keep the event loop free."""

_GONE = 410
"""The status code that makes kopf list again."""

List = Callable[[str | None], Awaitable[int]]
"""Lists the jobs of a namespace, or of all, and returns the version of the list."""


def answers(list_jobs: List) -> type[aiohttp.ClientResponse]:
    """Return the class of a session's responses."""

    class Answer(_Answer):
        _list_jobs = staticmethod(list_jobs)

    return Answer


class _Answer(aiohttp.ClientResponse):
    """A response of the API server to kopf."""

    _list_jobs: List

    async def start(self, connection: Any) -> Self:
        """Read the headers, and let the lines of a watch pass the gate later."""
        await super().start(connection)
        if self._is_about_jobs and "watch" in self.url.query:
            self.content = _Lines(self.content)  # type: ignore[assignment]  # it has the same methods
        return self

    async def json(self, **options: Any) -> Any:
        """Return the document. For a list of jobs it contains the version alone."""
        if not self._is_about_jobs:
            return await super().json(**options)
        await self.read()
        parts = self.url.path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts else None
        try:
            version = await self._list_jobs(namespace)
        except errors.ApiError as error:
            _LOG.warning("the list of jobs: %s; again in %.0f s", error, LIST_PAUSE_SECONDS)
            await asyncio.sleep(LIST_PAUSE_SECONDS)
            raise aiohttp.ClientPayloadError(str(error)) from error
        return {
            "apiVersion": names.API_VERSION,
            "kind": f"{names.KIND}List",
            "metadata": {"resourceVersion": str(version)},
            "items": [],
        }

    @property
    def _is_about_jobs(self) -> bool:
        is_read = self.status == 200 and self.method == "GET"
        return is_read and resources.plural_of(self.url.path) == names.PLURAL


class _Lines:
    """The lines of a watch, each of which passes the gate."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield whole lines, however long they are."""
        parts: list[bytes] = []
        async for chunk in self._content.iter_chunked(size):
            head, *lines = chunk.split(b"\n")
            parts.append(head)
            for part in lines:
                yield await _admitted(b"".join(parts))
                parts = [part]
        if last := b"".join(parts):
            yield await _admitted(last)


async def _admitted(line: bytes) -> bytes:
    """Return the event of a line in a form that kopf can parse; empty: the line has no event."""
    try:
        if len(line) > LARGE_LINE_BYTES:
            kind, document = await asyncio.to_thread(gate.read_event, line)
        else:
            kind, document = gate.read_event(line)
    except raw_json.BrokenError as error:
        if line.strip():
            _LOG.error("an event of the watch of jobs is left out: %s", error)
        return b""
    if kind == "ERROR" and document.get("code") != _GONE:
        _LOG.warning("the watch of jobs ended: %s", document.get("message"))
        document = {**document, "code": _GONE}  # kopf exits after any other error.
    document.get("metadata", {}).pop("managedFields", None)
    return orjson.dumps({"type": kind, "object": document}) + b"\n"
