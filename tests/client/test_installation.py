"""A plain installation of the wheels: what they declare is enough to import all of them."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from testing import paths

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
LIST = ("-m", "pip", "list", "--format", "json")


def run(*command: str, folder: pathlib.Path) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command[1:4]}: {done.stderr[-2000:]}")
    return done.stdout


@pytest.mark.long
def test_the_wheels_bring_what_they_import(tmp_path: pathlib.Path) -> None:
    programs = tmp_path / "venv" / "bin"
    python = str(programs / "python")
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), folder=tmp_path)
    projects = [str(paths.ROOT / name) for name in ("trainer", "operator", "client")]
    wheels = tmp_path / "wheels"
    try:
        run(
            *(python, "-m", "pip", "wheel", "--no-deps", "-w", str(wheels), *projects),
            folder=tmp_path,
        )
        install = (python, "-m", "pip", "install", "--find-links", str(wheels))
        run(*install, "tfparallel", folder=tmp_path)
    except RuntimeError as error:
        if "No matching distribution" in str(error) or "Temporary failure" in str(error):
            pytest.skip(f"no package registry is in reach: {error}")
        raise
    installed = {package["name"] for package in json.loads(run(python, *LIST, folder=tmp_path))}
    assert not installed & {"kopf", "keras", "tensorflow", "tensorflow-cpu", "prometheus-client"}
    client = ("tfparallel", "tfparallel_trainer.contract")
    assert json.loads(run(python, "-c", IMPORT_ALL, *client, folder=tmp_path)) == {}
    assert run(str(programs / "kubectl_complete-tfparallel"), "scal", folder=tmp_path)
    for command in ("tfparallel", "kubectl-tfparallel"):
        assert run(str(programs / command), "version", folder=tmp_path).startswith("tfparallel ")
    job = str(paths.ROOT / "examples/digits/job.yaml")
    assert "valid" in run(str(programs / "tfparallel"), "validate", job, folder=tmp_path)

    run(*install, "tfparallel-operator[engine]", folder=tmp_path)
    assert json.loads(run(python, "-c", IMPORT_ALL, "tfparallel_operator", folder=tmp_path)) == {}
    operator = str(programs / "tfparallel-operator")
    assert "--trainer-image" in run(operator, "--help", folder=tmp_path)
