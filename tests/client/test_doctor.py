"""`tfparallel doctor`, `version` and `completion`."""

import json
import pathlib
import subprocess
import sys

import click.testing
import pytest

from testing.operator import harness
from tfparallel.cli import app
from tfparallel.cluster import access, backend, checkup
from tfparallel_operator.api_server import credentials


async def test_a_cluster_without_an_operator(place: harness.Place) -> None:
    kubeconfig = str(place.cluster.kubeconfig)
    context = access.Context("test", place.namespace, credentials.find(kubeconfig))
    async with backend.ClusterBackend(context) as cluster:
        checks = {check.name: check async for check in checkup.check(cluster, checkup.ALL)}
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
    done = click.testing.CliRunner().invoke(app.tfparallel, ["doctor"])
    assert done.exit_code == 1
    lines = {
        line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line[0] != " "
    }
    assert lines["kubeconfig"] == "missing"
    assert lines["Python"] == "ok"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = click.testing.CliRunner().invoke(app.tfparallel, ["completion", shell])
    assert done.exit_code == 0
    assert "_TFPARALLEL_COMPLETE" in done.stdout


async def test_the_version_shows_what_the_cluster_has(place: harness.Place) -> None:
    command = (sys.executable, "-m", "tfparallel", "version", "-o", "json")
    where = ("--kubeconfig", str(place.cluster.kubeconfig))
    done = subprocess.run((*command, *where), capture_output=True, text=True, check=False)
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
    runner = click.testing.CliRunner()
    done = runner.invoke(app.tfparallel, ["version"])
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].startswith("cluster no kubeconfig")
    done = runner.invoke(app.tfparallel, ["version", "--client"])
    assert len(done.stdout.splitlines()) == 1
