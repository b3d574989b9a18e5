"""The import graph of this repository, read from the sources without running them.

grimp, which import-linter uses, does not tell an import of a module from one within a function.
"""

import ast
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator

from testing import paths

TENSORFLOW = frozenset({"tensorflow", "keras"})
ROOTS = tuple(paths.ROOT / name for name in ("client", "operator", "trainer", "."))
"""Where first-party modules are looked for, in this order."""

PACKAGES = frozenset(
    {
        "tfparallel",
        "tfparallel_operator",
        "tfparallel_trainer",
        "testing",
        "tests",
        "benchmarks",
        "manifests",
    }
)


@dataclasses.dataclass(frozen=True)
class Imports:
    """The modules that one file imports, and candidates that may be plain names."""

    at_once: frozenset[str]
    """When it is imported itself."""

    later: frozenset[str]
    """Within functions."""


@functools.cache
def reaches_tensorflow(file: pathlib.Path) -> bool:
    """Whether importing this file imports TensorFlow or Keras."""
    return any(_imports(reached).at_once & TENSORFLOW for reached in _reached(file, _at_once))


def files_reached(file: pathlib.Path) -> frozenset[pathlib.Path]:
    """This file and all first-party files that it imports, at any time."""
    return closure(file, _at_any_time)


def named_files(file: pathlib.Path) -> frozenset[pathlib.Path]:
    """The first-party files that this file imports by itself, at any time."""
    return frozenset(_at_any_time(file))


def modules(file: pathlib.Path) -> frozenset[str]:
    """The modules that this file imports at any time, and candidates that may be plain names."""
    imports = _imports(file)
    return imports.at_once | imports.later


@functools.cache
def closure(
    file: pathlib.Path, neighbours: Callable[[pathlib.Path], Iterator[pathlib.Path]]
) -> frozenset[pathlib.Path]:
    """All files that are reached from one by `neighbours`."""
    return frozenset(_reached(file, neighbours))


def _reached(
    file: pathlib.Path, neighbours: Callable[[pathlib.Path], Iterator[pathlib.Path]]
) -> Iterator[pathlib.Path]:
    """The files of a closure one by one: whoever has seen enough parses no others."""
    reached, waiting = {file}, [file]
    while waiting:
        current = waiting.pop()
        yield current
        new = set(neighbours(current)) - reached
        reached |= new
        waiting += new


def _at_once(file: pathlib.Path) -> Iterator[pathlib.Path]:
    return _files(_imports(file).at_once)


def _at_any_time(file: pathlib.Path) -> Iterator[pathlib.Path]:
    imports = _imports(file)
    return itertools.chain(_files(imports.at_once), _files(imports.later))


def _files(modules: frozenset[str]) -> Iterator[pathlib.Path]:
    for module in modules:
        file = _file(module)
        if file is not None:
            yield file


@functools.cache
def _file(module: str) -> pathlib.Path | None:
    """The file of a first-party module or package; None for other modules and plain names."""
    parts = module.split(".")
    if parts[0] not in PACKAGES:
        return None
    for root in ROOTS:
        path = root.joinpath(*parts)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    return None


@functools.cache
def _imports(file: pathlib.Path) -> Imports:
    tree = ast.parse(file.read_bytes(), str(file))
    at_once: set[str] = set()
    later: set[str] = set()
    _visit(tree, at_once, later)
    return Imports(frozenset(at_once), frozenset(later))


def _visit(node: ast.AST, names: set[str], later: set[str]) -> None:
    for child in _statements(node):
        match child:
            case ast.Import():
                for alias in child.names:
                    names |= _with_parents(alias.name)
            case ast.ImportFrom(module=str(module), level=0):
                names |= _with_parents(module)
                names |= {f"{module}.{alias.name}" for alias in child.names}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                _visit(child, later, later)
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                pass
            case _:
                _visit(child, names, later)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a node's blocks: no expression imports, and most nodes are expressions."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, block, ())


def _with_parents(module: str) -> set[str]:
    return set(itertools.accumulate(module.split("."), "{}.{}".format))
