"""A plain installation of the wheels: what they declare is enough to import all of them."""

import contextlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Iterator

import pytest

from testing import invocation, paths

pytestmark = [pytest.mark.timeout(1200)]
"""pip fetches packages: a test took 61 s, and under load more than the usual limit."""

IMPORT_ALL = """
import importlib, json, pkgutil, sys
failed = {}
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                failed[module.name] = str(error)
print(json.dumps(failed))
"""
PAGE = """
from tfparallel_trainer.contract import documentation
print(documentation.locate(documentation.REASONS, "replicafailed").partition("#")[0])
"""


def run(*command: str, folder: pathlib.Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = invocation.execute(*command, folder=folder, env=environment)
    if done.returncode:
        raise RuntimeError(f"{command[1:4]}: {done.stderr[-2000:]}")
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with a wheel of each distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    projects = [str(paths.ROOT / name) for name in ("trainer", "operator", "client")]
    wheel = (sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(folder))
    with skipped_without_registry():
        run(*wheel, *projects, folder=folder)
    return folder


class Environments:
    """Makes an environment for each distribution that tests ask for, once."""

    def __init__(self, folder: pathlib.Path, wheels: pathlib.Path) -> None:
        self._folder, self._wheels = folder, wheels
        self._pythons: dict[str, pathlib.Path] = {}

    def python_with(self, distribution: str) -> pathlib.Path:
        """Return the Python of the environment that has this distribution alone."""
        if distribution not in self._pythons:
            folder = self._folder / str(len(self._pythons))
            run(sys.executable, "-m", "venv", "--without-pip", str(folder), folder=self._folder)
            python = folder / "bin" / "python"
            with skipped_without_registry():
                find = ("--no-compile", "--find-links", str(self._wheels))
                run(*pip(python), "install", *find, distribution, folder=self._folder)
            self._pythons[distribution] = python
        return self._pythons[distribution]


@pytest.fixture(scope="module")
def environments(wheels: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Environments:
    return Environments(tmp_path_factory.mktemp("environments"), wheels)


def pip(python: pathlib.Path) -> tuple[str, ...]:
    """Return the command of this Python's pip for another one."""
    return (sys.executable, "-m", "pip", "--python", str(python))


@contextlib.contextmanager
def skipped_without_registry() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if "No matching distribution" in str(error) or "Temporary failure" in str(error):
            pytest.skip(f"no package registry is in reach: {error}")
        raise


@pytest.mark.long
@pytest.mark.parametrize(
    ("distribution", "packages"),
    [
        ("tfparallel-trainer", ("tfparallel_trainer.contract", "tfparallel_trainer.storage")),
        (
            "tfparallel-operator",
            tuple(f"tfparallel_operator.{part}" for part in ("api", "api_server", "core")),
        ),
        ("tfparallel-operator[engine]", ("tfparallel_operator",)),
        ("tfparallel", ("tfparallel", "tfparallel_trainer.contract")),
    ],
)
def test_a_wheel_alone_brings_what_it_imports(
    distribution: str,
    packages: tuple[str, ...],
    environments: Environments,
    tmp_path: pathlib.Path,
) -> None:
    python = environments.python_with(distribution)
    assert json.loads(run(str(python), "-c", IMPORT_ALL, *packages, folder=tmp_path)) == {}


@pytest.mark.long
def test_the_commands_of_the_wheels_start(
    environments: Environments, tmp_path: pathlib.Path
) -> None:
    python = environments.python_with("tfparallel")
    programs = python.parent
    listed = json.loads(run(*pip(python), "list", "--format", "json", folder=tmp_path))
    installed = {package["name"] for package in listed}
    assert not installed & {"kopf", "keras", "tensorflow", "tensorflow-cpu", "prometheus-client"}
    assert run(str(programs / "kubectl_complete-tfparallel"), "scal", folder=tmp_path)
    for command in ("tfparallel", "kubectl-tfparallel"):
        assert run(str(programs / command), "version", folder=tmp_path).startswith("tfparallel ")
    assert pathlib.Path(run(str(python), "-c", PAGE, folder=tmp_path).strip()).is_file()
    job = str(paths.ROOT / "examples/digits/job.yaml")
    assert "valid" in run(str(programs / "tfparallel"), "validate", job, folder=tmp_path)

    engine = environments.python_with("tfparallel-operator[engine]").parent
    assert "--trainer-image" in run(str(engine / "tfparallel-operator"), "--help", folder=tmp_path)


@pytest.mark.long
def test_pipx_installs_the_commands(
    wheels: pathlib.Path,
    environments: Environments,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipx = environments.python_with("pipx").with_name("pipx")
    programs = tmp_path / "bin"
    monkeypatch.setenv("PIPX_HOME", str(tmp_path / "pipx"))
    monkeypatch.setenv("PIPX_BIN_DIR", str(programs))
    where = f"--pip-args=--find-links {wheels}"
    with skipped_without_registry():
        run(str(pipx), "install", where, "tfparallel", folder=tmp_path)
    for command in ("tfparallel", "kubectl-tfparallel"):
        assert run(str(programs / command), "version", folder=tmp_path).startswith("tfparallel ")


TYPED = """
import tfparallel

with tfparallel.TrainerClient(tfparallel.Local()) as client:
    reveal_type(client.get_job("digits").status.attempt)
    reveal_type(client.diagnose_job("digits").remedy)
"""


@pytest.mark.long
@pytest.mark.usefixtures("processes")
def test_a_type_checker_knows_the_types_of_the_client(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(TYPED)
    cache = f"--cache-dir={tmp_path / 'cache'}"
    output = run(sys.executable, "-m", "mypy", "--strict", cache, "train.py", folder=tmp_path)
    assert re.findall(r'Revealed type is "(.*)"', output) == ["int", "str"]
