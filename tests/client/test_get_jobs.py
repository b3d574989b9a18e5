"""`tfparallel get job`: tables, objects, names and changes, as kubectl prints them."""

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import yaml
from aiohttp import web

from testing import invocation, pages, paths
from testing.operator import routes, scripted_server
from testing.operator.namespaces import Namespace
from tfparallel import models
from tfparallel.backends.cluster import access, cluster_backend, objects
from tfparallel.cli import listing
from tfparallel_operator.api import names
from tfparallel_operator.api_server import credentials, resources

JOBS = resources.JOBS.path("team")
ALL_JOBS = resources.JOBS.path(None)
DIGITS, FLOWERS = routes.job("digits", 3), routes.job("flowers", 4, state="Failed", step=9)
DOCUMENTS = {
    JOBS: scripted_server.listing(5, DIGITS, FLOWERS),
    ALL_JOBS: scripted_server.listing(5, DIGITS, FLOWERS),
    f"{JOBS}/digits": DIGITS,
    f"{JOBS}/flowers": FLOWERS,
}


async def get(folder: pathlib.Path, *arguments: str) -> tuple[invocation.Result, list[str]]:
    """Call `tfparallel get` on an API server; also return the selectors that it received."""
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        where = ("--kubeconfig", str(routes.kubeconfig(folder, server.url)))
        result = await asyncio.to_thread(invocation.invoke, ("get", *arguments, *where))
        about_jobs = (
            request for request in server.requests if request.path.endswith("/tfparalleljobs")
        )
        selectors = [request.query.get("labelSelector", "") for request in about_jobs]
    return result, selectors


def words(result: invocation.Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines()]


async def test_a_table_of_all_jobs(tmp_path: pathlib.Path) -> None:
    result, _ = await get(tmp_path, "jobs")
    head, digits, flowers = words(result)
    assert head[:5] == ["NAME", "STATE", "STRATEGY", "READY", "STEP"]
    assert digits[:6] == ["digits", "Running", "MultiWorkerMirrored", "2/2", "7/10", "0.5"]
    assert flowers[:2] == ["flowers", "Failed"]


async def test_the_wide_table_has_messages_and_that_of_all_namespaces_their_names(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result, _ = await get(tmp_path, "jobs", "-A", "-o", "wide")
    head, digits, _ = words(result)
    assert (head[0], head[-1]) == ("NAMESPACE", "MESSAGE")
    assert digits[:2] == ["team", "digits"]
    assert digits[-3:] == ["or", "have", "completed"]


async def test_some_jobs_by_name(tmp_path: pathlib.Path) -> None:
    result, _ = await get(tmp_path, "job", "flowers", "digits", "-o", "name")
    assert result.stdout.splitlines() == [
        f"{names.SINGULAR}.{names.GROUP}/{name}" for name in ("flowers", "digits")
    ]
    result, _ = await get(tmp_path, "job", "digit")
    assert result.exit_code == 2
    assert "did you mean 'digits'" in result.stderr


async def test_one_job_is_an_object_and_several_are_a_list(tmp_path: pathlib.Path) -> None:
    result, _ = await get(tmp_path, "job", "digits", "-o", "json")
    assert json.loads(result.stdout) == DIGITS
    result, _ = await get(tmp_path, "job", "-o", "yaml")
    document = yaml.safe_load(result.stdout)
    assert (document["kind"], document["items"]) == ("List", [DIGITS, FLOWERS])


async def test_a_selector_is_the_api_servers(tmp_path: pathlib.Path) -> None:
    result, selectors = await get(tmp_path, "jobs", "-l", "team=vision,stage!=test")
    assert result.exit_code == 0
    assert selectors == ["team=vision,stage!=test"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("job", "digits", "-A"), "leave it out, or -A and -l"),
        (("job", "digits", "-l", "a=b"), "leave it out, or -A and -l"),
        (("job", "digits", "flowers", "-w"), "give one name, or none"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    result = invocation.invoke(("get", *arguments))
    assert result.exit_code == 2
    assert reason in result.stderr


def changed(kind: str, body: dict[str, Any]) -> bytes:
    return orjson.dumps({"type": kind, "object": body}) + b"\n"


PAGE = paths.PAGES / "reference/status.md"


@pytest.mark.parametrize(
    "command",
    [
        command
        for block in pages.blocks(PAGE, "console")
        for command in pages.commands(block)
        if command.line.startswith("tfparallel get ")
    ],
)
async def test_the_page_shows_what_is_printed(
    command: pages.PageCommand, tmp_path: pathlib.Path
) -> None:
    result, _ = await get(tmp_path, *command.line.split()[2:])
    shown = [line.split() for line in command.shown]
    for rows in (shown, printed := words(result)):
        for row in rows[1:]:
            del row[7:]  # the age
    assert printed == shown


@contextlib.asynccontextmanager
async def connected(
    folder: pathlib.Path, *script: scripted_server.Answer
) -> AsyncIterator[tuple[cluster_backend.ClusterBackend, scripted_server.Server]]:
    """Connect to a server that answers one request after the other."""
    async with scripted_server.serving() as server:
        server.script = [*script]
        file = str(routes.kubeconfig(folder, server.url))
        context = access.Context("kind-dev", "team", credentials.find(file))
        async with cluster_backend.ClusterBackend(context) as cluster:
            yield cluster, server


def version(job: models.Job) -> str:
    return f"{job.name}-{job.manifest['metadata']['resourceVersion']}"


async def test_a_watch_yields_what_is_there_and_each_change(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is yielded once, though the list that follows a lost connection has it again."""
    monkeypatch.setattr(cluster_backend, "_PAUSE_SECONDS", 0)
    later = routes.job("digits", 6, step=8)
    stream = scripted_server.stream(
        changed("MODIFIED", later),
        changed("BOOKMARK", {"metadata": {"resourceVersion": "7"}}),
        changed("DELETED", routes.job("flowers", 8, state="Failed")),
        then="cut",
    )
    again = scripted_server.listing(9, later, routes.job("new", 9))
    silent = scripted_server.stream(changed("MODIFIED", routes.job("new", 10)), then="silence")
    script = (routes.answers(DOCUMENTS), stream, scripted_server.document(again), silent)
    versions = []
    async with connected(tmp_path, *script) as (cluster, server):
        async for job in cluster.watch_jobs(labels="team=vision"):
            versions.append(version(job))
            if len(versions) == 6:
                break
        assert {request.query["labelSelector"] for request in server.requests} == {"team=vision"}
    assert versions == ["digits-3", "flowers-4", "digits-6", "flowers-8", "new-9", "new-10"]


@pytest.mark.parametrize(
    "end",
    [
        [scripted_server.stream(changed("DELETED", routes.job("digits", 8)), then="silence")],
        [
            scripted_server.stream(then="cut"),
            scripted_server.document(scripted_server.listing(9)),
            scripted_server.stream(then="silence"),
        ],
    ],
    ids=["seen", "during-a-break"],
)
async def test_the_watch_of_a_job_ends_with_its_deletion(
    end: list[scripted_server.Answer], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_backend, "_PAUSE_SECONDS", 0)
    first = scripted_server.document(DIGITS)
    listed = scripted_server.document(scripted_server.listing(6, routes.job("digits", 6)))
    async with connected(tmp_path, first, listed, *end) as (cluster, _):
        versions = [version(job) async for job in cluster.watch_job("digits")]
    assert versions == ["digits-3", "digits-6"]


async def test_changes_stay_below_their_columns(capsys: pytest.CaptureFixture[str]) -> None:
    async def changes() -> Any:
        for body in (DIGITS, routes.job("digits", 6, step=10, state="Succeeded")):
            yield objects.parse_job(body)

    await listing.follow(changes(), "table", everywhere=False)
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.startswith("NAME ")
    assert first.index("Running") == head.index("STATE") == second.index("Succeeded")


async def test_jobs_of_a_real_api_server(namespace: Namespace) -> None:
    await namespace.create_job()
    arguments = ("get", "jobs", *invocation.where(namespace))
    listed = await asyncio.to_thread(invocation.invoke, arguments)
    assert words(listed)[1][0] == "digits"
    none = await asyncio.to_thread(invocation.invoke, (*arguments, "-l", "no-such-label"))
    assert (none.exit_code, none.stdout) == (0, "")
    assert "There are no jobs in namespace" in none.stderr


async def test_a_job_that_nests_too_deep_is_listed_with_the_others(tmp_path: pathlib.Path) -> None:
    """The limit of 1,024 levels is that of the client's own reader of JSON."""
    deep = orjson.dumps({**FLOWERS, "spec": "SPEC"}).replace(b'"SPEC"', b"[" * 1100 + b"]" * 1100)
    page = (
        b'{"apiVersion":"v1","items":[%b],"kind":"L","metadata":{"continue":"%b",'
        b'"resourceVersion":"5"}}'
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        first, second = orjson.dumps(DIGITS), deep
        both = request.query["limit"] != "1"
        is_first = "continue" not in request.query
        items = first + b"," + second if both else first if is_first else second
        go_on = b"" if both or not is_first else b"next"
        return web.Response(body=page % (items, go_on))

    async with scripted_server.serving() as server:
        server.script = [answer]
        where = ("--kubeconfig", str(routes.kubeconfig(tmp_path, server.url)))
        result = await asyncio.to_thread(invocation.invoke, ("get", "jobs", *where))
    rows = words(result)[1:]
    assert [row[:2] for row in rows] == [["digits", "Running"], ["flowers", "Failed"]]
