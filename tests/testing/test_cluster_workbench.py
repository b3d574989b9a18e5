"""`make cluster-up` gives a person what README's section on clusters needs."""

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from testing import pages, paths, waiting
from testing.cluster import __main__ as command
from testing.cluster import handle, lifecycle, workbench

LIMIT_SECONDS = 600.0
_IN_README = [shown.line for shown in pages.find_commands(pages.README, "helm install")]


@pytest.fixture
def desk(tmp_path: pathlib.Path) -> handle.Cluster:
    """A cluster that does not run, whose programs are scripts that print their names."""
    kubectl, helm = tmp_path / "kubectl", tmp_path / "helm"
    for program in (kubectl, helm):
        program.write_text(f"#!/bin/sh\necho {program.name} $KUBECONFIG\n")
        program.chmod(0o755)
    folder = tmp_path / "cluster"
    folder.mkdir()
    return handle.Cluster("desk", "full", handle.kubeconfig(folder), kubectl, helm, folder)


@pytest.mark.usefixtures("processes")
def test_the_first_line_leads_to_the_cluster_and_its_programs(desk: handle.Cluster) -> None:
    workbench.link_programs(desk)
    workbench.link_programs(desk)  # as a second `make cluster-up` does
    variables, *others = workbench.next_commands(desk)
    assert others == _IN_README
    for program in ("kubectl", "helm"):
        line = f"{variables}\n{program}"
        printed = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        assert printed.stdout == f"{program} {desk.kubeconfig}\n"


def test_only_a_full_cluster_is_equipped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["up", "--mode", "light", "--equipped"])
    assert "--equipped needs --mode full" in capsys.readouterr().err


def test_claims_without_a_class_find_volumes(light_cluster: handle.Cluster) -> None:
    try:
        workbench.offer_volumes(light_cluster)
        workbench.offer_volumes(light_cluster)
        [storage_class] = _items(light_cluster, "storageclass")
        assert storage_class["metadata"]["name"] == workbench.STORAGE_CLASS
        key = "storageclass.kubernetes.io/is-default-class"
        assert storage_class["metadata"]["annotations"][key] == "true"
        folders = [
            pathlib.Path(volume["spec"]["hostPath"]["path"]) for volume in _ours(light_cluster)
        ]
        assert len(folders) == workbench.VOLUMES
        assert all(folder.stat().st_mode & 0o777 == 0o777 for folder in folders)
    finally:
        names = (volume["metadata"]["name"] for volume in _ours(light_cluster))
        light_cluster.run_kubectl("delete", "persistentvolume", *names, "--wait=false")
        light_cluster.run_kubectl("delete", "storageclass", workbench.STORAGE_CLASS)


def _ours(cluster: handle.Cluster) -> list[dict[str, Any]]:
    volumes = _items(cluster, "persistentvolume")
    return [
        volume
        for volume in volumes
        if volume["spec"]["storageClassName"] == workbench.STORAGE_CLASS
    ]


def _items(cluster: handle.Cluster, kind: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(cluster.run_kubectl("get", kind, "--output=json"))[
        "items"
    ]
    return items


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cluster_programs", "processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and containers need root")
def test_the_section_of_the_readme_on_clusters_runs_word_by_word() -> None:
    name = f"pytest-desk-{os.getpid()}"
    up = ("-m", "testing.cluster", "up", "--mode", "full", "--equipped", "--name", name)
    try:
        started = subprocess.run(
            [sys.executable, *up], cwd=paths.ROOT, capture_output=True, text=True, check=True
        )
        variables, install, apply, watch, logs = started.stdout.splitlines()
        assert [install, apply, watch, logs] == _IN_README
        assert "watch" in watch
        _run(variables, install)
        _run(variables, apply)
        state = "kubectl get tfpj digits --output=jsonpath={.status.state}"
        waiting.until(
            lambda: _run(variables, state),
            "the end of the job",
            LIMIT_SECONDS,
            when=lambda text: text == "Succeeded",
            poll=2.0,
        )
        assert "accuracy" in _run(variables, logs)
    finally:
        lifecycle.down(name)


def _run(*lines: str) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)],
        cwd=paths.ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=True,
    )
    return done.stdout
