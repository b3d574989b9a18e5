"""What the distributions import is what they declare."""

import ast
import functools
import importlib.metadata
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping

import pytest

from testing import paths

PACKAGES = {"tfparallel", "tfparallel_operator", "tfparallel_trainer"}


def canonical(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name.group()).lower()


@functools.cache
def distributions() -> Mapping[str, list[str]]:
    """Which distributions provide a module: reading what all of them installed takes a while."""
    return importlib.metadata.packages_distributions()


def imports(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
    """Yield every module outside of the standard library that files import, by its first name."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.partition(".")[0] for name in names}:
                if name not in sys.stdlib_module_names and name not in PACKAGES:
                    yield path.relative_to(folder), name


@pytest.mark.parametrize(
    ("distribution", "package", "extra", "parts"),
    [
        ("client", "tfparallel", "pictures", ("drawing",)),
        ("operator", "tfparallel_operator", "engine", ("engine", "main.py")),
        ("trainer", "tfparallel_trainer", "cpu", None),
        ("trainer", "tfparallel_trainer", "cuda", None),
        ("trainer", "tfparallel_trainer/contract", None, None),
    ],
)
def test_every_import_is_declared(
    distribution: str, package: str, extra: str | None, parts: tuple[str, ...] | None
) -> None:
    """`extra` counts for the folders in `parts` alone, or for all."""
    folder = paths.ROOT / distribution
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    plain = set(map(canonical, project["dependencies"]))
    more = set(map(canonical, project["optional-dependencies"][extra])) if extra else set()
    if "tensorflow-cpu" in more or "tensorflow" in more:
        more |= {"tensorflow", "tensorflow-cpu"}
    providers = distributions()
    undeclared = set()
    for path, name in imports(folder / package):
        declared = plain | more if parts is None or path.parts[0] in parts else plain
        if not declared & set(map(canonical, providers.get(name, [name]))):
            undeclared.add(f"{path}: {name}")
    assert undeclared == set()
