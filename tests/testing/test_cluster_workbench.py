"""`make cluster-up` gives a person what README's section on clusters needs."""

import os
import pathlib
import subprocess
import sys

import pytest

from testing import invocation, pages, paths, waiting
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


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cluster_programs", "processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces and containers need root")
def test_the_section_of_the_readme_on_clusters_runs_word_by_word() -> None:
    name = f"pytest-desk-{os.getpid()}"
    up = ("-m", "testing.cluster", "up", "--mode", "full", "--equipped", "--name", name)
    try:
        started = invocation.execute(sys.executable, *up, folder=paths.ROOT, check=True)
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
    done = invocation.execute(
        "bash", "-e", "-c", "\n".join(lines), folder=paths.ROOT, check=True, timeout=LIMIT_SECONDS
    )
    return done.stdout
