"""What kopf reads through its session, from a server that sends what kopf cannot read."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from testing.operator import objects, scripted_server
from tfparallel_operator.api import gate
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.engine.observe import watch_session

PATH = resources.JOBS.path("team")
DEEP = '{"x":' * 1_100 + "1" + "}" * 1_100
WATCH = {"watch": "true"}


def _line(kind: str, name: str, spec: str = "{}") -> bytes:
    metadata = json.dumps({"managedFields": [{}], "name": name, "resourceVersion": "7"})
    job = f'{{"apiVersion":"v","kind":"k","metadata":{metadata},"spec":{spec}}}'
    text = f'{{"type":"{kind}","object":{job}}}\n'
    return text.replace('": ', '":').replace(', "', ',"').encode()


async def _list(namespace: str | None) -> int:
    assert namespace == "team"
    return 42


async def _read(server: scripted_server.Server, list_jobs: watch_session.List = _list) -> Any:
    """Return the events of a watch as kopf reads them."""
    access = server.client().access
    async with (
        access.session(answers=watch_session.answers(list_jobs)) as session,
        session.get(server.url + PATH, params=WATCH) as answer,
    ):
        text = b"".join([part async for part in answer.content.iter_chunked(1000)])
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
async def server() -> AsyncIterator[scripted_server.Server]:
    async with scripted_server.serving() as server:
        yield server


async def test_an_event_that_kopf_cannot_read_is_replaced_and_the_others_stay(
    server: scripted_server.Server,
) -> None:
    lines = _line("ADDED", "a") + _line("ADDED", "b", DEEP) + _line("DELETED", "c")
    large = _line("MODIFIED", "d", json.dumps("x" * gate.MAX_SPEC_BYTES))
    server.script = [scripted_server.stream(lines[:50], lines[50:] + large[:9], large[9:])]
    events = await _read(server)
    shown = [(event["type"], event["object"]["metadata"]["name"]) for event in events]
    assert shown == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "c"), ("MODIFIED", "d")]
    assert [gate.PROBLEM in event["object"] for event in events] == [False, True, False, True]
    assert all("managedFields" not in event["object"]["metadata"] for event in events)


@pytest.mark.parametrize(
    "line",
    [
        *("<html>", "null", "[]", "{}", '{"type":"ADDED"}', '{"type":"ADDED","object":null}'),
        *('{"type":"ADDED","object":{"metadata":null}}', '{"type":"BOOKMARK","object":{}}'),
        '{"type":"ADDED","object":{"metadata":{"name":"a"}}}',
        '{"type":"ERROR","object":null}',
    ],
)
async def test_a_line_that_is_no_event_is_left_out(
    line: str, server: scripted_server.Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [scripted_server.stream(line.encode() + b"\n", _line("ADDED", "a"))]
    [event] = await _read(server)
    assert event["object"]["metadata"]["name"] == "a"
    assert "an event of the watch of jobs is left out" in caplog.text


async def test_an_error_of_the_watch_makes_kopf_list_again(server: scripted_server.Server) -> None:
    line = b'{"type":"ERROR","object":{"code":500,"message":"etcd is away"}}\n'
    server.script = [scripted_server.stream(line)]
    [event] = await _read(server)
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_kopf_learns_the_version_of_the_sweepers_list(
    server: scripted_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_session, "LIST_PAUSE_SECONDS", 0.0)

    async def unavailable(_: str | None) -> int:
        raise errors.Unavailable("no answer")

    server.script = [scripted_server.document(scripted_server.listing(7, objects.job()))]
    access = server.client().access
    async with access.session(answers=watch_session.answers(_list)) as session:
        listing = await (await session.get(server.url + PATH)).json()
        assert (listing["metadata"], listing["items"]) == ({"resourceVersion": "42"}, [])
        other = await (await session.get(f"{server.url}/apis/tfparallel.dev/v1alpha1")).json()
        assert other["items"]
    async with access.session(answers=watch_session.answers(unavailable)) as session:
        with pytest.raises(aiohttp.ClientPayloadError, match="no answer"):
            await (await session.get(server.url + PATH)).json()
