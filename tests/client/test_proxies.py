"""Proxies and server names of a kubeconfig, with a real proxy, as kubectl takes them."""

import asyncio
import pathlib
import ssl
import subprocess
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from testing import invocation
from testing.operator import connect_proxy
from testing.operator.namespaces import Namespace
from tfparallel import errors
from tfparallel.backends.cluster import access, refusals
from tfparallel_operator.api_server import client, credentials
from tfparallel_operator.api_server import errors as api_errors

_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def proxy(namespace: Namespace) -> AsyncIterator[connect_proxy.Proxy]:
    """A proxy that leads to the API server of the place."""
    async with connect_proxy.serving(_port(namespace)) as running:
        yield running


def _port(namespace: Namespace) -> int:
    [named] = _load(namespace)["clusters"]
    return int(urllib.parse.urlsplit(named["cluster"]["server"]).port or 0)


def _load(namespace: Namespace) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    return document


def _kubeconfig(namespace: Namespace, folder: pathlib.Path, **fields: str) -> str:
    """The kubeconfig of the place with other fields of its cluster."""
    document = _load(namespace)
    [named] = document["clusters"]
    named["cluster"].update({name.replace("_", "-"): text for name, text in fields.items()})
    file = folder / "proxied.yaml"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def _hidden(namespace: Namespace, folder: pathlib.Path, **fields: str) -> str:
    """A kubeconfig whose server only a proxy can find; its certificate has another name."""
    names = {"server": "https://cluster.invalid:6443", "tls_server_name": "127.0.0.1"}
    return _kubeconfig(namespace, folder, **{**names, **fields})


async def _kubectl(namespace: Namespace, file: str, *, command: tuple[str, ...]) -> None:
    arguments = [str(namespace.cluster.kubectl), f"--kubeconfig={file}", *command]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_the_proxy_of_a_kubeconfig_leads_to_the_server(
    namespace: Namespace, proxy: connect_proxy.Proxy, tmp_path: pathlib.Path
) -> None:
    await namespace.create_job()
    file = _hidden(namespace, tmp_path, proxy_url=proxy.url)
    await _kubectl(namespace, file, command=("get", "namespaces"))
    asked = len(proxy.requests)
    arguments = ("status", "-n", namespace.name, "--kubeconfig", file)
    done = await asyncio.to_thread(invocation.run, *arguments)
    assert (done.returncode, "digits" in done.stdout) == (0, True), done.stderr
    assert len(proxy.requests) > asked
    assert all(head.startswith("CONNECT cluster.invalid:6443 ") for head in proxy.requests)
    assert not any("Bearer" in head for head in proxy.requests)


async def test_the_proxy_of_the_environment_leads_to_the_server(
    namespace: Namespace,
    proxy: connect_proxy.Proxy,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("//", "//me:secret@"))
    file = _hidden(namespace, tmp_path)
    context = access.find(access.ConnectionOptions(kubeconfig=file))
    async with client.Client(context.access) as api:
        assert "gitVersion" in await api.get("/version")
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in proxy.requests[0]
    monkeypatch.setenv("NO_PROXY", ".invalid")
    direct = access.find(access.ConnectionOptions(kubeconfig=file))
    async with client.Client(direct.access) as api:
        with pytest.raises(api_errors.Unavailable, match=r"cluster\.invalid"):
            await api.get("/version")
    assert len(proxy.requests) == 1


async def test_a_proxy_may_speak_tls_itself(namespace: Namespace, tmp_path: pathlib.Path) -> None:
    """It has the certificate of the API server, which the kubeconfig trusts."""
    keys = namespace.cluster.directory / "keys"
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(keys / "kube-apiserver.crt", keys / "kube-apiserver.key")
    async with connect_proxy.serving(_port(namespace), tls=tls) as secure:
        file = _hidden(namespace, tmp_path, proxy_url=secure.url)
        await _kubectl(namespace, file, command=("get", "namespaces"))
        async with client.Client(credentials.find(file)) as api:
            assert "gitVersion" in await api.get("/version")
        assert len(secure.requests) >= 2


async def test_the_operator_works_through_a_proxy(
    namespace: Namespace, proxy: connect_proxy.Proxy, tmp_path: pathlib.Path
) -> None:
    file = _hidden(namespace, tmp_path, proxy_url=proxy.url)
    async with namespace.operator(kubeconfig=file):
        await namespace.create_job()
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
    assert proxy.requests


async def test_a_certificate_of_another_name_is_taken_for_the_name_of_the_kubeconfig(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    """Through a forwarder on 127.0.0.2, which the certificate does not name."""
    async with connect_proxy.forwarding("127.0.0.2", _port(namespace)) as port:
        server = f"https://127.0.0.2:{port}"
        file = _kubeconfig(namespace, tmp_path, server=server, tls_server_name="127.0.0.1")
        await _kubectl(namespace, file, command=("get", "namespaces"))
        async with client.Client(credentials.find(file)) as api:
            assert "gitVersion" in await api.get("/version")
        context = access.find(
            access.ConnectionOptions(kubeconfig=_kubeconfig(namespace, tmp_path, server=server))
        )
        async with client.Client(context.access) as api:
            with pytest.raises(errors.Failure) as refusal, refusals.explained(context):
                await api.get("/version")
        assert "Set tls-server-name of its cluster in the kubeconfig" in str(refusal.value)


async def test_a_proxy_that_refuses_is_named_with_the_field(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    async with connect_proxy.serving(1, "407 Proxy Authentication Required") as refusing:
        file = _hidden(namespace, tmp_path, proxy_url=refusing.url.replace("//", "//me:secret@"))
        context = access.find(access.ConnectionOptions(kubeconfig=file))
        async with client.Client(context.access) as api:
            with pytest.raises(errors.Failure) as refusal, refusals.explained(context):
                await api.get("/version")
    assert f"{refusing.url} (proxy-url of its cluster in the kubeconfig)" in str(refusal.value)
    assert "407" in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_a_proxy_of_another_kind_is_refused_by_its_field(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "config"
    cluster = {"server": "https://cluster.invalid", "proxy-url": "socks5://127.0.0.1:1080"}
    document = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": cluster}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    }
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(errors.Failure, match=r"^proxy-url .* names the proxy socks5://127"):
        access.find(access.ConnectionOptions(kubeconfig=str(file)))
