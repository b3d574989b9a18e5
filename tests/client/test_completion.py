"""What the shell completes: names of a cluster, at once or not at all."""

import asyncio
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from aiohttp import web
from click import shell_completion

from testing import invocation, pages
from testing.cluster import binaries
from testing.operator import routes, scripted_server
from testing.operator.namespaces import Namespace
from tfparallel.cli import app, complete, completion
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

CONTEXTS = ["kind-dev", "production"]
NAMESPACES = [{"metadata": {"name": name}} for name in ("team", "tfparallel-system", "vision")]
PROGRAM = """
import sys
from tfparallel import cli
from tfparallel.cli import complete
complete._SECONDS = 60.0
sys.argv = ["tfparallel"]
cli.main()
"""


def pod(replica: str) -> dict[str, Any]:
    """A pod of the job digits."""
    owner = {"uid": "uid-of-digits", "controller": True}
    role, _, index = replica.rpartition("-")
    labels = {names.LABEL_ROLE: role, names.LABEL_INDEX: index}
    metadata = {
        "name": f"digits-{replica}",
        "labels": labels,
        "ownerReferences": [owner],
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


DOCUMENTS = {
    resources.JOBS.path("team"): scripted_server.listing(
        5, routes.job("digits"), routes.job("digits-2"), routes.job("flowers")
    ),
    resources.JOBS.path("vision"): scripted_server.listing(5, routes.job("photos")),
    resources.JOBS.path("team", "digits"): routes.job("digits"),
    resources.PODS.path("team"): scripted_server.listing(5, pod("worker-1"), pod("worker-0")),
    resources.NAMESPACES.path(): scripted_server.listing(5, *NAMESPACES),
}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than the bound."""
    monkeypatch.setattr(complete, "_SECONDS", 60.0)


def items(arguments: list[str], incomplete: str) -> list[shell_completion.CompletionItem]:
    """Return what a shell would show, as click computes it for all of them."""
    kind = shell_completion.get_completion_class("bash")
    assert kind is not None
    shell = kind(app.tfparallel, {}, "tfparallel", "_TFPARALLEL_COMPLETE")
    return shell.get_completions(arguments, incomplete)


def completed(arguments: list[str], incomplete: str) -> list[str]:
    return [item.value for item in items(arguments, incomplete)]


async def complete_on(server: scripted_server.Server, *arguments: str, config: str) -> list[str]:
    """Complete the last of the words."""
    *earlier, incomplete = arguments
    earlier.insert(1, f"--kubeconfig={config}")
    return await asyncio.to_thread(completed, earlier, incomplete)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("status d", ["digits", "digits-2"]),
        ("logs f", ["flowers"]),
        ("delete digits d", ["digits-2"]),
        ("scale -n vision ", ["photos"]),
        ("suspend --namespace=vision p", ["photos"]),
        ("logs -n t", ["team", "tfparallel-system"]),
        ("logs --context p", ["production"]),
        ("delete nothing-like-it", []),
        ("logs digits ", ["worker-0", "worker-1"]),
        ("logs digits worker-1", ["worker-1"]),
        ("logs nothing ", []),
    ],
)
async def test_names_are_completed(line: str, expected: list[str], tmp_path: pathlib.Path) -> None:
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        config = str(routes.kubeconfig(tmp_path, server.url))
        assert await complete_on(server, *line.split(" "), config=config) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (arguments, expected)
        for (arguments, _), expected in zip(
            pages.rows(
                "get-started/install-command.md", "Tab then completes verbs, options, and names:"
            ),
            (
                ["digits", "digits-2", "flowers"],
                ["worker-0", "worker-1"],
                ["team", "tfparallel-system", "vision"],
                CONTEXTS,
            ),
            strict=True,
        )
    ],
)
async def test_what_the_page_completes(
    line: str, expected: list[str], tmp_path: pathlib.Path
) -> None:
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        config = str(routes.kubeconfig(tmp_path, server.url))
        arguments = (*line.split()[1:], "")
        assert await complete_on(server, *arguments, config=config) == expected


async def test_the_nouns_of_get_complete_jobs_too(tmp_path: pathlib.Path) -> None:
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        config = f"--kubeconfig={routes.kubeconfig(tmp_path, server.url)}"
        for noun in ("job", "jobs", "model"):
            arguments = ["get", noun, config]
            assert await asyncio.to_thread(completed, arguments, "f") == ["flowers"]


async def test_folders_of_local_runs_are_completed_where_no_job_fits(
    tmp_path: pathlib.Path,
) -> None:
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        config = f"--kubeconfig={routes.kubeconfig(tmp_path, server.url)}"
        for arguments in (["tensorboard"], ["get", "model"], ["status"]):
            [item] = await asyncio.to_thread(items, [*arguments, config], "runs/d")
            assert (item.value, item.type) == ("runs/d", "dir")
            [item] = await asyncio.to_thread(items, [*arguments, config], "fl")
            assert (item.value, item.type) == ("flowers", "plain")


@pytest.mark.parametrize("content", [None, "a: [", "{}"], ids=["missing", "broken", "empty"])
def test_without_a_usable_kubeconfig_nothing_is_completed(
    content: str | None, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    for arguments in (["delete"], ["logs", "-n"], ["logs", "--context"]):
        earlier = [arguments[0], f"--kubeconfig={file}", *arguments[1:]]
        assert completed(earlier, "d") == []
    assert capfd.readouterr() == ("", "")


async def test_a_cluster_that_does_not_answer_in_time_completes_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the bound itself is shortened; without it, this test would wait for the answer."""
    monkeypatch.setattr(complete, "_SECONDS", 0.1)
    answered = asyncio.Event()

    async def late(request: web.Request) -> web.StreamResponse:
        await answered.wait()
        return await routes.answers(DOCUMENTS)(request)

    async with scripted_server.serving() as server:
        server.script = [late]
        config = str(routes.kubeconfig(tmp_path, server.url))
        assert await complete_on(server, "delete", "d", config=config) == []
        answered.set()


@pytest.mark.usefixtures("processes")
async def test_a_shell_gets_the_names_from_the_program(tmp_path: pathlib.Path) -> None:
    """As the scripts of bash, zsh and fish call it."""
    shells = {
        "bash": ({"COMP_WORDS": "tfparallel status d", "COMP_CWORD": "2"}, "plain,digits\n"),
        "zsh": ({"COMP_WORDS": "tfparallel status d", "COMP_CWORD": "2"}, "plain\ndigits\n_\n"),
        "fish": ({"COMP_WORDS": "tfparallel status ", "COMP_CWORD": "d"}, "plain,digits"),
    }
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        config = str(routes.kubeconfig(tmp_path, server.url))
        for shell, (variables, expected) in shells.items():
            environment = {"KUBECONFIG": config, "_TFPARALLEL_COMPLETE": f"{shell}_complete"}
            done = await asyncio.to_thread(
                subprocess.run,
                (sys.executable, "-c", PROGRAM),
                env={**os.environ, **environment, **variables},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(expected)


@pytest.mark.parametrize("line", ["tfparallel bogus x", "tfparallel get foo x"])
def test_after_a_wrong_word_nothing_is_completed(line: str) -> None:
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    variables_of_shell = {"_TFPARALLEL_COMPLETE": "bash_complete", **variables}
    result = invocation.invoke(env=variables_of_shell, prog_name="tfparallel")
    assert (result.exit_code, result.output.strip()) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["logs", "f"], "flowers\n:4\n"),
        (["delete", "nothing-like-it"], ":4\n"),
        (["logs", "digits", ""], "worker-0\nworker-1\n:4\n"),
        (["scal"], "scale\tChange the number of workers of a job.\n:4\n"),
        (["validate", "jo"], ":0\n"),
        (["tensorboard", "runs/d"], ":16\n"),
    ],
)
async def test_kubectl_gets_the_names(
    arguments: list[str],
    expected: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        monkeypatch.setenv("KUBECONFIG", str(routes.kubeconfig(tmp_path, server.url)))
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-tfparallel", *arguments])
        await asyncio.to_thread(completion.answer_kubectl)
    assert capfd.readouterr() == (expected, "")


@pytest.mark.usefixtures("cluster_programs")
def test_the_real_kubectl_completes_its_plugin(
    tmp_path: pathlib.Path,
) -> None:
    program = tmp_path / "kubectl_complete-tfparallel"
    code = "from tfparallel.cli import completion; completion.answer_kubectl()"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    (tmp_path / "kubectl-tfparallel").symlink_to(program)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = invocation.execute(
        binaries.path("kubectl"), "__complete", "tfparallel", "scal", check=True, env=environment
    )
    assert done.stdout == "scale\tChange the number of workers of a job.\n:4\n"


async def test_jobs_of_a_real_api_server(namespace: Namespace) -> None:
    await namespace.create_job()
    arguments = ["status", f"--kubeconfig={namespace.cluster.kubeconfig}", "-n", namespace.name]
    assert await asyncio.to_thread(completed, arguments, "dig") == ["digits"]
