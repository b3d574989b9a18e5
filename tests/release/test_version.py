"""One file has the version; others repeat it."""

import pathlib
import subprocess
import sys

import pytest

from testing import paths

REPEATED = {
    "charts/tfparallel-operator/Chart.yaml",
    "charts/tfparallel-operator/README.md",
    "client/pyproject.toml",
    "examples/components/image/kustomization.yaml",
    "examples/fit/job.yaml",
    "manifests/release/kustomization.yaml",
    "operator/pyproject.toml",
    "trainer/pyproject.toml",
}


def generate(root: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "manifests", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(processes: None, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the committed files and of those that are not yet."""
    command = ["git", "-C", str(paths.ROOT), "ls-files", "--cached", "--others"]
    listed = subprocess.check_output([*command, "--exclude-standard"], text=True)
    for name in listed.splitlines():
        if (source := paths.ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(source.read_bytes())
    return tmp_path


def test_a_new_version_goes_wherever_it_is_repeated(tree: pathlib.Path) -> None:
    (tree / "VERSION").write_text("7.8.9\n", encoding="utf-8")
    done = generate(tree)
    assert done.returncode == 0, done.stderr
    assert {line.removeprefix("wrote ") for line in done.stdout.splitlines()} >= REPEATED
    client = (tree / "client/pyproject.toml").read_text(encoding="utf-8")
    assert client.count('"tfparallel-operator==7.8.9"') == 1
    assert client.count('"tfparallel-trainer==7.8.9"') == 1
    assert (
        "tfparallel-operator 7.8.9" in (tree / "charts/tfparallel-operator/README.md").read_text()
    )


def test_what_is_no_version_is_refused(tree: pathlib.Path) -> None:
    (tree / "VERSION").write_text("v1\n", encoding="utf-8")
    done = generate(tree, "--check")
    assert done.returncode != 0
    assert "VERSION is 'v1': write three numbers, such as 0.2.0" in done.stderr
