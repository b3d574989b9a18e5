"""Streams of lines: logs, and watches with an event in each line."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson

from tfparallel_operator.api import envelopes, gate, raw_json
from tfparallel_operator.api_server import errors, resources


@dataclasses.dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event of a watch: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: dict[str, Any]


async def read_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream into lines. aiohttp's own reader fails for lines above 128 KiB."""
    parts: list[bytes] = []
    async for chunk in content.iter_any():
        head, *lines = chunk.split(b"\n")
        parts.append(head)
        for part in lines:
            yield b"".join(parts)
            parts = [part]
    if last := b"".join(parts):
        yield last


def parse_event(line: bytes, resource: resources.Resource) -> WatchEvent:
    """Return the event of a line of a watch.

    Raises:
        errors.Expired: the version from which to watch is too old.
        errors.Unavailable: the line is not an event.
    """
    try:
        if resource == resources.JOBS:
            kind, document = gate.read_event(line)
        else:
            kind, document = envelopes.check_event(orjson.loads(line))
    except (orjson.JSONDecodeError, raw_json.BrokenError) as error:
        raise errors.Unavailable(
            f"the watch sent a line that is not JSON as an API server's is: {error}"
        ) from error
    if kind == "ERROR":
        raise errors.from_answer(document.get("code", 0), document)
    return WatchEvent(kind, document)
