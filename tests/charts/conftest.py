"""The programs that render charts and kustomizations; no cluster is needed for that."""

import subprocess
from pathlib import Path

import pytest

from testing import paths
from testing.cluster import binaries
from testing.operator import rendering


@pytest.fixture(scope="session")
def clients() -> dict[str, Path]:
    binaries.ensure(binaries.CLIENTS)
    return {name: binaries.path(name) for name in binaries.CLIENTS}


@pytest.fixture(scope="session")
def helm(clients: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> rendering.Command:
    home = tmp_path_factory.mktemp("helm")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(clients["helm"]), *arguments]
        environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    return run


@pytest.fixture(scope="session")
def chart(helm: rendering.Command) -> rendering.Render:
    """rendering.Render the chart with `--set` values."""

    def render(*values: str, release: str = "tfparallel-operator") -> rendering.Objects:
        settings = [part for value in values for part in ("--set", value)]
        where = ["--namespace", rendering.NAMESPACE, "--skip-tests"]
        done = helm("template", release, str(paths.CHART), *where, *settings)
        assert done.returncode == 0, done.stderr
        return rendering.Objects.parse(done.stdout)

    return render


@pytest.fixture(scope="session")
def kustomize(clients: dict[str, Path]) -> rendering.Render:
    """Build a kustomization of the repository."""

    def build(folder: str) -> rendering.Objects:
        command = [str(clients["kubectl"]), "kustomize", str(paths.ROOT / folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return rendering.Objects.parse(done.stdout)

    return build
