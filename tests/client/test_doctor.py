"""`tfparallel doctor`, `version` and `completion`."""

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

from testing import invocation, pages, paths
from testing.cluster import binaries
from testing.operator import routes, scripted_server
from testing.operator.namespaces import Namespace
from tfparallel.backends.cluster import access, cluster_backend, doctor_checks
from tfparallel_operator.api import schema
from tfparallel_operator.api_server import credentials, resources

PAGE = paths.PAGES / "get-started/install-command.md"
_OPERATOR = "tfparallel-operator"
_DEPLOYMENTS = resources.DEPLOYMENTS.path(None)
_DEFINITION = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/tfparalleljobs.tfparallel.dev"
)


def _deployment(version: str, ready: int) -> dict[str, Any]:
    labels = {"app.kubernetes.io/version": version} if version else {}
    return {
        "metadata": {
            "namespace": "tfparallel-system",
            "name": "tfparallel-operator",
            "labels": labels,
        },
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{}]}}},
        "status": {"readyReplicas": ready},
    }


@contextlib.asynccontextmanager
async def _cluster(
    folder: pathlib.Path, *, version: str, ready: int = 1, same_fields: bool = True
) -> AsyncIterator[pathlib.Path]:
    """Serve a cluster where operator and definition have a version; yield its kubeconfig."""
    definition = schema.custom_resource_definition()
    labels = {"app.kubernetes.io/version": version} if version else {}
    definition["metadata"] |= {"labels": labels, "resourceVersion": "1"}
    if not same_fields:
        definition["spec"]["versions"][0]["schema"] = {}
    documents = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        _DEFINITION: definition,
        _DEPLOYMENTS: scripted_server.listing(1, _deployment(version, ready)),
    }
    async with scripted_server.serving() as server:
        server.script = [routes.answers(documents)]
        with mock.patch.object(doctor_checks, "client_version", return_value="0.1.0"):
            yield routes.kubeconfig(folder, server.url)


async def _checks(folder: pathlib.Path, **installed: Any) -> dict[str, doctor_checks.Check]:
    async with _cluster(folder, **installed) as kubeconfig:
        context = access.Context("test", "team", credentials.find(str(kubeconfig)))
        async with cluster_backend.ClusterBackend(context) as cluster:
            checks = doctor_checks.check(cluster, doctor_checks.VERSIONS)
            return {check.name: check async for check in checks}


async def test_the_page_shows_what_version_prints(tmp_path: pathlib.Path) -> None:
    [block] = [b for b in pages.blocks(PAGE, "console") if "tfparallel version" in b]
    [shown] = [c.shown for c in pages.commands(block) if c.line == "tfparallel version"]
    async with _cluster(tmp_path, version="0.1.0") as kubeconfig:
        call = ("version", "--kubeconfig", str(kubeconfig))
        printed = await asyncio.to_thread(invocation.invoke, call)
    assert tuple(printed.stdout.splitlines()) == shown


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0.0.9", "older than this command, 0.1.0. Upgrade the operator (helm upgrade or"),
        ("0.2.0", "newer than this command, 0.1.0. Upgrade the command: pipx upgrade tfparallel"),
        ("0.10.0", "newer than this command"),
    ],
)
async def test_the_older_one_of_command_and_operator_is_named(
    version: str, sentence: str, tmp_path: pathlib.Path
) -> None:
    operator = (await _checks(tmp_path, version=version))["operator"]
    assert operator.result is doctor_checks.CheckResult.WARNING
    assert operator.text.startswith(
        f"tfparallel-system/tfparallel-operator {version}: 1/1 ready. It is "
    )
    assert sentence in operator.text


@pytest.mark.parametrize("version", ["0.1.0", ""])
async def test_an_operator_of_this_version_or_an_unknown_one_is_well(
    version: str, tmp_path: pathlib.Path
) -> None:
    checks = await _checks(tmp_path, version=version)
    assert {str(check.result) for check in checks.values()} == {"ok"}
    assert checks["operator"].text.split(":")[0].split()[1:] == [version] * bool(version)


async def test_an_operator_that_is_not_ready_matters_more_than_its_version(
    tmp_path: pathlib.Path,
) -> None:
    operator = (await _checks(tmp_path, version="0.0.9", ready=0))["operator"]
    assert operator.result is doctor_checks.CheckResult.MISSING
    assert "describe deployment tfparallel-operator" in operator.text


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0.0.9", "v1alpha1, of 0.0.9. It is older than this command, 0.1.0. Upgrade the resource"),
        ("0.2.0", "Upgrade the command: pipx upgrade tfparallel"),
        ("0.1.0", "not that of this command, 0.1.0. Upgrade the resource definition"),
        ("", "of an unknown version. It is not that of this command"),
    ],
)
async def test_the_older_one_of_command_and_definition_is_named(
    version: str, sentence: str, tmp_path: pathlib.Path
) -> None:
    checks = await _checks(tmp_path, version=version, same_fields=False)
    assert checks["resource definition"].result is doctor_checks.CheckResult.WARNING
    assert sentence in checks["resource definition"].text


def test_supported_versions_are_those_that_the_test_clusters_have() -> None:
    oldest, newest = (binaries.kubernetes_version(module) for module in ("older", "tools"))
    minors = [int(version.split(".")[1]) for version in (oldest, newest)]
    assert minors == [doctor_checks.MINORS[0], doctor_checks.MINORS[-1]]


async def test_a_cluster_without_an_operator(namespace: Namespace) -> None:
    kubeconfig = str(namespace.cluster.kubeconfig)
    context = access.Context("test", namespace.name, credentials.find(kubeconfig))
    async with cluster_backend.ClusterBackend(context) as cluster:
        checks = {
            check.name: check async for check in doctor_checks.check(cluster, doctor_checks.ALL)
        }
    results = {name: str(check.result) for name, check in checks.items()}
    assert results == {
        "API server": "ok",
        "resource definition": "ok",
        "operator": "missing",
        "rights": "ok",
        "storage class": "warning",
        "GPUs": "ok",
    }
    assert "helm install" in checks["operator"].text


def test_without_a_kubeconfig_the_machine_is_still_checked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = invocation.invoke(["doctor"])
    assert done.exit_code == 1
    lines = {
        line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line[0] != " "
    }
    assert lines["kubeconfig"] == "missing"
    assert lines["Python"] == "ok"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = invocation.invoke(["completion", shell])
    assert done.exit_code == 0
    assert "_TFPARALLEL_COMPLETE" in done.stdout


async def test_the_version_shows_what_the_cluster_has(namespace: Namespace) -> None:
    done = invocation.run("version", "-o", "json", *invocation.where(namespace)[2:])
    assert {*json.loads(done.stdout)} == {
        "tfparallel",
        "API server",
        "resource definition",
        "operator",
    }


def test_the_version_without_a_cluster(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = invocation.invoke(["version"])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].startswith("cluster no kubeconfig")
    done = invocation.invoke(["version", "--client"])
    assert len(done.stdout.splitlines()) == 1
