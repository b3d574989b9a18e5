"""What goes wrong between a verb and a cluster: one sentence with a remedy, and an exit status."""

import asyncio
import pathlib
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
import yaml
from aiohttp import web

from testing import invocation
from testing.operator import local_jobs, scripted_server
from tfparallel import source_packing

OF_A_JOB = {
    "status": ("status", "digits"),
    "watch": ("status", "-w", "digits"),
    "why": ("why", "digits"),
    "logs": ("logs", "digits"),
    "follow": ("logs", "-f", "digits"),
    "events": ("events", "digits"),
    "get model": ("get", "model", "digits"),
    "suspend": ("suspend", "digits"),
    "resume": ("resume", "digits"),
    "scale": ("scale", "digits", "--workers", "2"),
    "delete": ("delete", "digits"),
}
"""Verbs that need a job."""

VERBS = {**OF_A_JOB, "list": ("status",), "submit": ("submit", "job.yaml")}

_JOB = {
    "apiVersion": "tfparallel.dev/v1alpha1",
    "kind": "TFParallelJob",
    "metadata": {"name": "digits"},
    "spec": {"trainer": {"epochs": 1}, "tfReplicaSpecs": {"Worker": {"replicas": 1}}},
}

_CREATED = {
    **_JOB,
    "metadata": {
        "name": "digits",
        "namespace": "team",
        "uid": "1",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    },
}
"""The job as the API server has it."""

Call = Callable[..., Awaitable[invocation.Result]]


@pytest.fixture
def call(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a verb against a server, in a folder with a job."""
    monkeypatch.chdir(tmp_path)
    # The test speaks HTTP, and to load the certificates of all authorities takes most of its time.
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(_JOB))
    (tmp_path / "model.py").write_text(local_jobs.MODULE)

    async def run(
        server: str, *arguments: str, config: Mapping[str, Any] | None = None
    ) -> invocation.Result:
        kubeconfig = tmp_path / "config"
        kubeconfig.write_text(yaml.safe_dump(config or _config(server)))
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        return await asyncio.to_thread(invocation.invoke, arguments, catch_exceptions=False)

    return run


def _config(server: str, **user: Any) -> dict[str, Any]:
    return {
        "current-context": "kind",
        "clusters": [{"name": "kind", "cluster": {"server": server}}],
        "users": [{"name": "ann", "user": user}],
        "contexts": [
            {"name": "kind", "context": {"cluster": "kind", "user": "ann", "namespace": "team"}}
        ],
    }


def _status(code: int, reason: str, message: str) -> scripted_server.Answer:
    """Answer as an API server does that refuses."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message}
    return scripted_server.document({**body, "code": code}, status=code)


def _check(result: invocation.Result, status: int, *sentences: str) -> None:
    assert result.exit_code == status, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    for sentence in sentences:
        assert sentence in line
    assert "unexpected" not in line


_FORBIDDEN = (
    'tfparalleljobs.tfparallel.dev is forbidden: User "ann" cannot list resource "tfparalleljobs"'
    ' in API group "tfparallel.dev" in the namespace "team"'
)
_ANSWERS: Mapping[str, tuple[scripted_server.Answer, Sequence[str]]] = {
    "expired credentials": (
        _status(401, "Unauthorized", "Unauthorized"),
        ("does not accept your credentials for context 'kind' (401)", "Log in again"),
    ),
    "no credentials": (
        _status(403, "Forbidden", _FORBIDDEN.replace("ann", "system:anonymous")),
        ("does not accept your credentials for context 'kind' (403)", "Log in again"),
    ),
    "no rights": (
        _status(403, "Forbidden", _FORBIDDEN),
        ("ann may not list tfparalleljobs in namespace 'team'", "Ask for a Role"),
    ),
    "no resource definition": (
        scripted_server.text("404 page not found\n", 404),
        ("TFParallelJob is not installed in context 'kind'", "helm install"),
    ),
    "busy": (_status(503, "ServiceUnavailable", "etcd is away"), ("is busy: etcd is away",)),
    "a login page": (
        scripted_server.text("<html>Log in</html>", 200),
        ("is not JSON", "kubectl cluster-info"),
    ),
}


_RARE = ("no credentials", "busy", "a login page")
"""Answers that a few verbs stand for: all verbs turn them into sentences in one place."""


@pytest.mark.parametrize(
    ("verb", "answer"),
    [
        (verb, answer)
        for answer in _ANSWERS
        for verb in VERBS
        if answer not in _RARE or verb in ("list", "submit", "watch")
    ],
)
async def test_what_the_api_server_refuses(call: Call, verb: str, answer: str) -> None:
    refusal, sentences = _ANSWERS[answer]
    async with scripted_server.serving() as server:
        server.script = [refusal]
        _check(await call(server.url, *VERBS[verb]), 1, *sentences)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_server_that_does_not_answer(call: Call, verb: str) -> None:
    async with scripted_server.serving() as server:
        gone = server.url
    _check(await call(gone, *VERBS[verb]), 1, "no answer from the API server", "cluster-info")


@pytest.mark.parametrize("verb", VERBS)
async def test_a_context_that_does_not_exist(call: Call, verb: str) -> None:
    result = await call("https://none", *VERBS[verb], "--context", "kimd")
    _check(result, 2, "--context 'kimd' is not in", "did you mean 'kind'?")


@pytest.mark.parametrize("verb", OF_A_JOB)
async def test_a_job_that_does_not_exist(call: Call, verb: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/tfparalleljobs"):
            jobs = [{"metadata": {"name": name}} for name in ("digit", "mnist")]
            return await scripted_server.document(scripted_server.listing(1, *jobs))(request)
        return await _status(404, "NotFound", 'tfparalleljobs "digits" not found')(request)

    async with scripted_server.serving() as server:
        server.script = [answer]
        sentence = "there is no job 'digits' in namespace 'team': did you mean 'digit'?"
        _check(await call(server.url, *VERBS[verb]), 2, sentence)


@pytest.mark.parametrize("kind", ["tfparalleljob.tfparallel.dev", "tfparalleljobs", "tfpj"])
@pytest.mark.parametrize("verb", OF_A_JOB)
async def test_a_name_may_have_its_kind_before_it(call: Call, verb: str, kind: str) -> None:
    arguments = [f"{kind}/digits" if word == "digits" else word for word in VERBS[verb]]
    async with scripted_server.serving() as server:
        server.script = [_status(404, "NotFound", "not found")]
        await call(server.url, *arguments)
        paths = {request.path.rpartition("/")[2] for request in server.requests}
    assert paths <= {"digits", "tfparalleljobs"}


@pytest.mark.parametrize("verb", OF_A_JOB)
async def test_a_name_that_no_job_can_have(call: Call, verb: str) -> None:
    name = "Digits"
    arguments = [name if word == "digits" else word for word in VERBS[verb]]
    result = await call("http://127.0.0.1:1", *arguments)
    _check(result, 2, f"{name!r} is not the name of a job", "lower-case letters")


_BROKEN_CONFIGS: Mapping[str, tuple[str, str]] = {
    "no YAML": ("a: [", "cannot be read as YAML"),
    "empty": ("", "cannot be used"),
    "a list": ("- a", "cannot be used"),
    "no such cluster": (
        yaml.safe_dump(_config("https://x") | {"clusters": []}),
        "cannot be used",
    ),
}


@pytest.mark.parametrize("case", _BROKEN_CONFIGS)
async def test_a_kubeconfig_that_is_broken(call: Call, case: str, tmp_path: pathlib.Path) -> None:
    content, sentence = _BROKEN_CONFIGS[case]
    file = tmp_path / "broken"
    file.write_text(content)
    _check(await call("https://x", "status", "--kubeconfig", str(file)), 1, str(file), sentence)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (("no-such-login",), "No such file or directory: 'no-such-login'"),
        (("sh", "-c", "echo run: cloud login >&2; exit 1"), "run: cloud login"),
        (("sh", "-c", "echo nonsense"), "failed to decode process output"),
    ],
    ids=["missing", "fails", "nonsense"],
)
async def test_a_login_plugin_that_fails(call: Call, command: tuple[str, ...], cause: str) -> None:
    name, *arguments = command
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": name,
        "args": arguments,
        "interactiveMode": "Never",
    }
    config = _config("http://127.0.0.1:1", exec=plugin)
    result = await call("http://127.0.0.1:1", "status", config=config)
    _check(result, 1, "the login command of context 'kind' in the kubeconfig fails", cause)


_PLUGIN = """
import datetime, json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
runs = len(list(folder.glob("run-*"))) + 1
(folder / f"run-{runs}").touch()
end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=float(sys.argv[2]))
print(json.dumps({
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {"token": f"token-{runs}", "expirationTimestamp": end.strftime("%Y-%m-%dT%H:%M:%SZ")},
}))
"""


def _login_plugin(folder: pathlib.Path, url: str, seconds: float) -> dict[str, Any]:
    """Return a kubeconfig whose plugin gives token-1, token-2 and so on, each for some seconds."""
    (folder / "plugin.py").write_text(_PLUGIN)
    runs = folder / "runs"
    runs.mkdir()
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": [str(folder / "plugin.py"), str(runs), str(seconds)],
        "interactiveMode": "Never",
    }
    return _config(url, exec=plugin)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["expired", "revoked"])
async def test_a_login_plugin_is_asked_again_when_its_token_is_refused(
    call: Call, seconds: float, tmp_path: pathlib.Path
) -> None:
    refused: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if not refused:
            refused.append(request.headers["Authorization"])
        if request.headers["Authorization"] in refused:
            return await _status(401, "Unauthorized", "Unauthorized")(request)
        return await scripted_server.document(scripted_server.listing(1, _CREATED))(request)

    async with scripted_server.serving() as server:
        server.script = [answer]
        config = _login_plugin(tmp_path, server.url, seconds)
        result = await call(server.url, "status", config=config)
    assert result.exit_code == 0, result.output
    assert len(refused) == 1


@pytest.mark.usefixtures("processes")
async def test_a_login_plugin_whose_tokens_are_all_refused(
    call: Call, tmp_path: pathlib.Path
) -> None:
    async with scripted_server.serving() as server:
        server.script = [_status(401, "Unauthorized", "Unauthorized")]
        config = _login_plugin(tmp_path, server.url, -3600)
        result = await call(server.url, "status", config=config)
        assert len(server.requests) == 2
    _check(result, 1, "does not accept your credentials for context 'kind' (401)", "Log in again")


async def test_a_current_context_that_does_not_exist(call: Call) -> None:
    config = _config("https://x") | {"current-context": "kimd"}
    result = await call("https://x", "status", config=config)
    _check(result, 1, "Expected object with name kimd", "kubectl config use-context NAME")


async def test_a_kubeconfig_that_does_not_exist(call: Call) -> None:
    _check(await call("https://x", "status", "--kubeconfig", "none"), 1, "'none' does not exist")


async def test_the_right_to_watch_is_named(call: Call) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await _status(403, "Forbidden", _FORBIDDEN.replace("list", "watch"))(request)
        if request.path.endswith("/tfparalleljobs"):
            return await scripted_server.document(scripted_server.listing(1, _CREATED))(request)
        return await scripted_server.document(_CREATED)(request)

    async with scripted_server.serving() as server:
        server.script = [answer]
        result = await call(server.url, "status", "-w", "digits")
    assert result.exit_code == 1
    assert "ann may not watch tfparalleljobs in namespace 'team'" in result.stderr


async def _answer_chief_alone(request: web.Request) -> web.StreamResponse:
    """Answer with the one job `digits`, which has a chief and no worker."""
    if request.path.endswith("/digits"):
        spec: dict[str, Any] = {"tfReplicaSpecs": {"Chief": {}}}
        return await scripted_server.document({**_CREATED, "spec": spec})(request)
    if request.path.endswith("/tfparalleljobs"):
        return await scripted_server.document(scripted_server.listing(1))(request)
    return await _status(404, "NotFound", "not found")(request)


async def test_a_job_without_workers_is_not_scaled(call: Call) -> None:
    async with scripted_server.serving() as server:
        server.script = [_answer_chief_alone]
        result = await call(server.url, *VERBS["scale"])
        assert {request.method for request in server.requests} == {"GET"}
    _check(result, 2, "job 'digits' has no Worker to scale: its roles are Chief")


@pytest.mark.parametrize("verb", ["suspend", "resume", "scale"])
async def test_a_job_that_has_ended_is_not_changed(call: Call, verb: str) -> None:
    async with scripted_server.serving() as server:
        server.script = [scripted_server.document({**_CREATED, "status": {"state": "Succeeded"}})]
        result = await call(server.url, *VERBS[verb])
        assert {request.method for request in server.requests} == {"GET"}
    _check(
        result, 1, "job 'digits' has ended: it is Succeeded. Delete it before you submit it again"
    )


async def test_jobs_that_exist_are_deleted_though_others_do_not(call: Call) -> None:
    async with scripted_server.serving() as server:
        server.script = [_answer_chief_alone]
        result = await call(server.url, "delete", "mnist", "digits")
        deleted = [request.path for request in server.requests if request.method == "DELETE"]
    assert [path.rpartition("/")[2] for path in deleted] == ["digits"]
    assert result.stdout == "digits deleted\n"
    _check(result, 2, "there is no job 'mnist'")


async def test_a_namespace_that_does_not_exist(call: Call) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            return await _status(404, "NotFound", 'namespaces "team" not found')(request)
        return await _status(404, "NotFound", 'tfparalleljobs "digits" not found')(request)

    async with scripted_server.serving() as server:
        server.script = [answer]
        result = await call(server.url, *VERBS["submit"])
    _check(result, 1, "namespace 'team' does not exist", "kubectl create namespace team")


async def test_a_field_that_an_older_definition_does_not_have(call: Call) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            message = 'TFParallelJob in version "v1alpha1" cannot be handled as a TFParallelJob:'
            refusal = f'{message} strict decoding error: unknown field "spec.trainer.source"'
            return await _status(400, "BadRequest", refusal)(request)
        return await _status(404, "NotFound", 'tfparalleljobs "digits" not found')(request)

    async with scripted_server.serving() as server:
        server.script = [answer]
        result = await call(server.url, *VERBS["submit"])
    _check(result, 2, "has no field 'spec.trainer.source'", "upgrade the operator", "to 0.1.0")


async def test_two_gigabytes_next_to_a_job_are_refused_before_they_are_read(
    call: Call, tmp_path: pathlib.Path
) -> None:
    with (tmp_path / "photos.tar").open("wb") as file:
        file.truncate(2 << 30)  # sparse: nothing is written
    result = await call("http://127.0.0.1:1", *VERBS["submit"])
    _check(result, 2, "photos.tar", "Keep data in a claim or a bucket", source_packing.IGNORE_FILE)
