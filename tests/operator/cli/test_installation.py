"""A plain installation of the wheels: what they declare is enough to import all of the operator."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from testing import paths

IMPORT_ALL = """
import importlib, json, pkgutil, sys
import tfparallel_operator, tfparallel_trainer.contract
extra = {"rich", "matplotlib", "kubernetes"}
failed = {}
for package in (tfparallel_operator, tfparallel_trainer.contract):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if not (module.name.startswith("tfparallel_operator.cli") and error.name in extra):
                failed[module.name] = str(error)
print(json.dumps(failed))
"""


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
    python = str(tmp_path / "venv" / "bin" / "python")
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), folder=tmp_path)
    projects = [str(paths.ROOT / name) for name in ("trainer", "operator")]
    wheels = str(tmp_path / "wheels")
    try:
        run(python, "-m", "pip", "wheel", "--no-deps", "-w", wheels, *projects, folder=tmp_path)
        built = [str(path) for path in sorted(pathlib.Path(wheels).iterdir())]
        run(python, "-m", "pip", "install", *built, folder=tmp_path)
    except RuntimeError as error:
        if "No matching distribution" in str(error) or "Temporary failure" in str(error):
            pytest.skip(f"no package registry is in reach: {error}")
        raise
    assert json.loads(run(python, "-c", IMPORT_ALL, folder=tmp_path)) == {}
    operator = str(tmp_path / "venv" / "bin" / "tfparallel-operator")
    assert "--trainer-image" in run(operator, "--help", folder=tmp_path)
    [wheel] = [path for path in built if "operator" in path]
    run(python, "-m", "pip", "install", f"{wheel}[cli]", folder=tmp_path)
    command = str(tmp_path / "venv" / "bin" / "tfparallel")
    assert run(command, "version", folder=tmp_path).startswith("tfparallel ")
