"""Which cluster a command reaches, and what it says when it cannot."""

import asyncio
import os
import pathlib
from typing import Any

import pytest
import yaml

from testing import invocation, waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel import errors
from tfparallel.backends.cluster import access, refusals
from tfparallel_operator.api import load
from tfparallel_operator.api_server import credentials, resources
from tfparallel_operator.api_server import errors as api_errors


def kubeconfig(name: str, namespace: str | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443"}}],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}}],
        "contexts": [
            {
                "name": name,
                "context": {
                    "cluster": name,
                    "user": name,
                    **({} if namespace is None else {"namespace": namespace}),
                },
            }
        ],
    }


@pytest.fixture
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two kubeconfigs, as $KUBECONFIG names them."""
    written = []
    for name, namespace in (("kind-dev", "team"), ("production", None)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(kubeconfig(name, namespace)))
        written.append(str(file))
    joined = os.pathsep.join(written)
    monkeypatch.setenv("KUBECONFIG", joined)
    return joined


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("choice", "server", "namespace"),
    [
        (access.ConnectionOptions(), "https://kind-dev.example:6443", "team"),
        (access.ConnectionOptions(namespace="mine"), "https://kind-dev.example:6443", "mine"),
        (
            access.ConnectionOptions(context="production"),
            "https://production.example:6443",
            "default",
        ),
    ],
)
async def test_the_context_is_that_of_kubectl(
    choice: access.ConnectionOptions, server: str, namespace: str
) -> None:
    context = access.find(choice)
    assert (context.access.server, context.namespace) == (server, namespace)
    token = (await context.access.token.header())["Authorization"]
    assert token == f"Bearer token-of-{context.name}"


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("name", "hint"),
    [("kind-devv", "did you mean 'kind-dev'?"), ("xyz", "it has kind-dev, production.")],
)
def test_a_wrong_context_is_named_with_what_there_is(name: str, hint: str) -> None:
    with pytest.raises(load.SpecError) as refusal:
        access.find(access.ConnectionOptions(context=name))
    assert f"--context {name!r} is not in" in str(refusal.value)
    assert hint in str(refusal.value)


def test_no_kubeconfig_is_said_with_a_remedy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path / "none")
    with pytest.raises(errors.Failure, match=r"no kubeconfig: .* does not exist. Set KUBECONFIG"):
        access.find(access.ConnectionOptions())


CONTEXT = access.Context(
    "kind-dev", "team", credentials.Access("https://x", True, credentials.Token(lambda: None))
)


@pytest.mark.parametrize(
    ("status", "message", "sentence"),
    [
        (0, "no answer from the API server to GET /x: refused", "kubectl cluster-info"),
        (0, "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", "certificate-authority-data"),
        (404, "", "helm install"),
        (503, "etcd is away", "busy: etcd is away. Try again"),
        (418, "a teapot", "refused: a teapot"),
    ],
)
def test_what_the_api_server_answers_has_a_remedy(status: int, message: str, sentence: str) -> None:
    error = api_errors.from_answer(status, {"message": message}) if status else None
    error = error or api_errors.Unavailable(message)
    assert sentence in refusals.sentence(error, CONTEXT)


def test_a_field_that_the_cluster_does_not_know_asks_for_an_upgrade() -> None:
    message = 'strict decoding error: unknown field "spec.trainer.source.archive"'
    sentence = r"has no field 'spec\.trainer\.source\.archive'"
    with pytest.raises(load.SpecError, match=sentence), refusals.explained(CONTEXT):
        raise api_errors.Invalid(message)


async def test_a_kind_that_a_real_server_does_not_know(namespace: Namespace) -> None:
    things = resources.Resource("nowhere.example/v1", "things")
    with pytest.raises(api_errors.NotFound) as refusal:
        await namespace.api.list(things, namespace.name)
    assert "is not installed in" in refusals.sentence(refusal.value, CONTEXT)


async def test_a_namespace_that_a_real_server_does_not_know(namespace: Namespace) -> None:
    manifest = {"metadata": {"name": "x"}, "data": {}}
    with pytest.raises(api_errors.NotFound) as refusal:
        await namespace.api.create(resources.CONFIG_MAPS, "nowhere", manifest)
    assert "namespace 'nowhere' does not exist" in refusals.sentence(refusal.value, CONTEXT)


async def test_each_verb_names_the_right_that_it_lacks(
    namespace: Namespace, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who may look at jobs alone, on a real API server."""
    elastic = objects.job()
    elastic["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 4
    await namespace.create_job(elastic)
    what = "--resource=tfparalleljobs.tfparallel.dev"
    namespace.kubectl("create", "role", "reader", "--verb=get,list", what)
    account = f"--serviceaccount={namespace.name}:default"
    namespace.kubectl("create", "rolebinding", "reader", "--role=reader", account)
    token = namespace.kubectl("create", "token", "default").strip()
    config = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.chdir(tmp_path)
    worker = {"replicas": 1, "template": objects.template()}
    job = {**objects.job(), "metadata": {"name": "other"}}
    job["spec"] = {"tfReplicaSpecs": {"Worker": worker}}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "other"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all([claim, job]))
    listing = ["status", "-n", namespace.name]
    await waiting.until_async(
        lambda: asyncio.to_thread(invocation.invoke, listing),
        "the role, which the API server learns of a moment later",
        when=lambda done: done.exit_code == 0,
    )
    for right, *verb in (
        ("watch tfparalleljobs", "status", "-w", "digits"),
        ("list pods", "status", "digits"),
        ("list pods", "logs", "digits"),
        ("list events", "events", "digits"),
        ("list pods", "why", "digits"),
        ("patch tfparalleljobs", "suspend", "digits"),
        ("patch tfparalleljobs", "resume", "digits"),
        ("patch tfparalleljobs", "scale", "digits", "--workers", "1"),
        ("delete tfparalleljobs", "delete", "digits"),
        ("create persistentvolumeclaims", "submit", "job.yaml"),
    ):
        done = await asyncio.to_thread(invocation.invoke, [*verb, "-n", namespace.name])
        assert done.exit_code == 1, (verb, done.output)
        user = f"system:serviceaccount:{namespace.name}:default"
        assert f"error: {user} may not {right} in namespace '{namespace.name}'" in done.stderr


async def test_expired_credentials_and_missing_rights_are_reported(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    """The words of a real API server."""
    config = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    token = namespace.cluster.run_kubectl(
        f"--namespace={namespace.name}", "create", "token", "default"
    ).strip()
    for user, sentence in (
        ("expired", "the API server does not accept your credentials"),
        (token, f"system:serviceaccount:{namespace.name}:default may not list tfparalleljobs"),
    ):
        config["users"] = [
            {"name": entry["name"], "user": {"token": user}} for entry in config["users"]
        ]
        file = tmp_path / "config"
        file.write_text(yaml.safe_dump(config))
        done = invocation.run("status", "-n", namespace.name, "--kubeconfig", file)
        assert done.returncode == 1
        assert sentence in done.stderr
        assert len(done.stderr.splitlines()) == 1
