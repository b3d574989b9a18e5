"""The import graph of this repository, read from the sources without running them.

Imports within functions do not count, which grimp, of import-linter, does not tell apart.
"""

import ast
import functools
import itertools
import json
import pathlib
import tempfile
from collections.abc import Iterator

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


@functools.cache
def reaches_tensorflow(file: pathlib.Path) -> bool:
    """Whether importing this file imports TensorFlow or Keras."""
    reached, pending = {file}, [file]
    while pending:
        modules_at_once = _parsed.imports(pending.pop())
        if modules_at_once & TENSORFLOW:
            return True
        new = set(_files(modules_at_once)) - reached
        reached |= new
        pending += new
    return False


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


def keep() -> None:
    """Store what this process has parsed, for the next run."""
    _parsed.keep()


class Parsed:
    """The imports of files; a file keeps those of unchanged ones, as parsing takes a second."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self._is_new = False

    def imports(self, file: pathlib.Path) -> frozenset[str]:
        """Return what a file imports, parsed again if it has changed: modules and perhaps names."""
        version, names = self._known.get(str(file), ([], []))
        if version != _version(file):
            names = _parse(file)
            self._known[str(file)] = _version(file), names
            self._is_new = True
        return frozenset(names)

    def keep(self) -> None:
        """Write the file, if there is anything new; workers may do so at the same time."""
        if not self._is_new:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._file.parent, delete=False) as draft:
            json.dump({_PARSER: self._known}, draft)
        pathlib.Path(draft.name).replace(self._file)
        self._is_new = False

    @functools.cached_property
    def _known(self) -> dict[str, tuple[list[int], list[str]]]:
        """Time and size of each file, and what it imports."""
        if not self._file.exists():
            return {}
        return dict(json.loads(self._file.read_text(encoding="utf-8")).get(_PARSER, {}))


_parsed = Parsed(paths.ROOT / "build/imports.json")


def _version(file: pathlib.Path) -> list[int]:
    status = file.stat()
    return [status.st_mtime_ns, status.st_size]


_PARSER = str(_version(pathlib.Path(__file__)))
"""What another version of this module has parsed may lack something."""


def _parse(file: pathlib.Path) -> list[str]:
    names: set[str] = set()
    _visit(ast.parse(file.read_bytes(), str(file)), names)
    return sorted(names)


def _visit(node: ast.AST, names: set[str]) -> None:
    for child in _statements(node):
        match child:
            case ast.Import():
                for alias in child.names:
                    names |= _with_parents(alias.name)
            case ast.ImportFrom(module=str(module), level=0):
                names |= _with_parents(module)
                names |= {f"{module}.{alias.name}" for alias in child.names}
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                pass
            case _:
                _visit(child, names)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a node's blocks: no expression imports, and most nodes are expressions."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, block, ())


def _with_parents(module: str) -> set[str]:
    return set(itertools.accumulate(module.split("."), "{}.{}".format))
