"""The chart as a package, and in a registry."""

import pathlib

import pytest

from images import targets
from release import __main__ as command
from testing import pages, paths
from testing.cluster import registry
from testing.operator import rendering

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl

PAGE = paths.PAGES / "operate/releasing.md"
HOST = "registry.example"
NAME = f"tfparallel-operator-{targets.version()}.tgz"
VALUES = "--set=metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true"


@pytest.fixture(scope="module")
def package(clients: dict[str, pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The packaged chart."""
    folder = tmp_path_factory.mktemp("chart") / "files"
    assert command.main(["--chart", f"--folder={folder}"]) == 0
    [file] = folder.iterdir()
    assert file.name == NAME
    return str(file)


def rendered(helm: rendering.Command, *chart: str) -> str:
    """What the chart installs."""
    done = helm("template", "x", *chart, VALUES)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_packaged_chart_renders_what_the_folder_does(
    helm: rendering.Command, package: str
) -> None:
    assert rendered(helm, package) == rendered(helm, str(paths.CHART))


def test_a_registry_gives_back_the_chart_that_the_page_pushes(
    helm: rendering.Command, package: str, tmp_path: pathlib.Path
) -> None:
    with registry.on_loopback(tmp_path) as running:

        def follow(line: str, *more: str) -> str:
            """Run a command of the page, with the package and the registry of the test."""
            line = line.replace(HOST, running.address).replace("0.2.0", targets.version())
            line = line.replace(f"build/release/{NAME}", package)
            arguments = line.replace("--username you", f"--username {registry.USER}").split()
            done = helm(*arguments[1:], *more, "--plain-http")
            assert arguments[0] == "helm"
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        login, push, show = pages.find_commands(PAGE, "helm registry login")
        with pytest.raises(AssertionError, match="basic credential not found"):
            follow(push.line)
        follow(login.line, f"--password={registry.PASSWORD}")
        assert "Digest: sha256:" in follow(push.line)
        assert f"version: {targets.version()}\n" in follow(show.line)
        source = ("--version", targets.version(), "--plain-http")
        chart = f"oci://{running.address}/team/charts/tfparallel-operator"
        pulled = helm("pull", chart, *source, f"--destination={tmp_path}")
        assert pulled.returncode == 0, pulled.stderr
        assert (tmp_path / NAME).read_bytes() == pathlib.Path(package).read_bytes()
        assert rendered(helm, chart, *source) == rendered(helm, str(paths.CHART))
