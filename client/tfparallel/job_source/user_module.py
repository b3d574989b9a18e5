"""Finds problems of the user's module in its text, without a process or TensorFlow.

It reports only certain problems. If the module may change what can be imported, or which names it
has, the trainer finds out.
"""

import ast
import dataclasses
import importlib.util
import pathlib
import symtable
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence

from tfparallel_trainer.contract import user_module

_DYNAMIC_NAMES = {"globals", "locals", "vars", "exec", "eval", "setattr"}
"""Functions by which a module may get names that its text does not show."""

_IMPORT_MODULES = {"sys", "site", "importlib"}
"""Modules by which a module may change the search path of imports."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceFiles:
    """The user's files: the module and what it can import."""

    read: Callable[[str], bytes | None]
    """Returns the content of a file by its path; None where the file does not exist."""
    names: Collection[str]
    """Names that the files can be imported by."""


def files_of_folder(folder: pathlib.Path) -> SourceFiles:
    """Return the files of a folder."""
    return SourceFiles(lambda path: read_file(folder / path), folder_names(folder))


def read_file(path: pathlib.Path) -> bytes | None:
    """Return the content of a file; None where there is none, or it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def folder_names(folder: pathlib.Path) -> set[str]:
    """Return the names that the files and folders of a folder can be imported by."""
    try:
        return {import_name(entry.name) for entry in folder.iterdir()}
    except OSError:
        return set()


def import_name(path: str) -> str:
    """Return the name that a file of the source, or the folder that it is in, is imported by."""
    return path.partition("/")[0].partition(".")[0]


def find_problems(
    module: str, files: SourceFiles, required: Sequence[str], *, has_packages: bool
) -> list[str]:
    """Return a sentence for each problem of a module that would end the trainer at its import.

    Args:
        module: the path of its file.
        files: where it and the user's other files are read.
        required: the functions that it must define.
        has_packages: whether this Python has the packages that the replicas import.
    """
    check = _Check(files, looks_up=has_packages)
    check.check_file(module)
    tree = check.trees.get(module)
    if tree is not None:
        check.problems += _missing_functions(module, tree, files.read(module) or b"", required)
    return check.problems


class _Check:
    """Follows the imports of a module, through the user's own files, in the order of execution."""

    def __init__(self, files: SourceFiles, *, looks_up: bool) -> None:
        self.problems: list[str] = []
        self.trees: dict[str, ast.Module | None] = {}
        """By the paths of the files that were read; None for a file that is not Python."""
        self._files = files
        self._looks_up = looks_up
        """Whether a package that is not found now is not found by the replicas."""

    def check_file(self, path: str) -> None:
        """Check a file, unless it was checked already."""
        if path in self.trees:
            return
        content = self._files.read(path)
        self.trees[path] = None
        if content is None:
            return
        try:
            self.trees[path] = tree = _parse(content, path)
        except (SyntaxError, ValueError) as error:
            self.problems.append(_syntax_problem(path, content, error))
            self._looks_up = False
            return
        for statement in tree.body:
            self._check_statement(path, statement)

    def _check_statement(self, path: str, statement: ast.stmt) -> None:
        if not self._looks_up:
            return
        match statement:
            case ast.Import(names=aliases):
                for alias in aliases:
                    self._check_import(path, statement.lineno, alias.name)
            case ast.ImportFrom(module=str(name), level=0):
                self._check_import(path, statement.lineno, name)
        self._looks_up = self._looks_up and not _may_change_imports(statement, self._files.names)

    def _check_import(self, path: str, line: int, name: str) -> None:
        top = name.partition(".")[0]
        if top in self._files.names:
            files = [file for file in (f"{top}.py", f"{top}/__init__.py") if self._files.read(file)]
            for file in files[:1]:
                self.check_file(file)
        elif not _is_installed(top):
            self.problems.append(
                f"{path}:{line}: imports {name!r}, and this Python has no package {top!r}: correct"
                " the name, or install it"
            )


def _parse(content: bytes, path: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(content, path, "exec", dont_inherit=True)  # finds more than the parser alone
        return ast.parse(content, path)


def _syntax_problem(path: str, content: bytes, error: SyntaxError | ValueError) -> str:
    if not isinstance(error, SyntaxError) or not error.lineno:
        return f"{path}: not Python: {error}; correct the file"
    lines = content.decode(errors="replace").splitlines()
    code = "".join(lines[error.lineno - 1 : error.lineno]).strip()[:80]
    return (
        f"{path}:{error.lineno}: received {code!r}; {type(error).__name__}: {error.msg}: correct"
        " the line"
    )


def _is_installed(name: str) -> bool:
    if name in sys.stdlib_module_names:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # something is loaded by that name
        return True


def _may_change_imports(statement: ast.stmt, own_names: Collection[str]) -> bool:
    """Whether later imports may find what they would not find now, once a statement has run."""
    match statement:
        case ast.Import():
            return False
        case ast.ImportFrom(module=name):
            return name in _IMPORT_MODULES
    for node in _executed(statement):
        match node:
            case ast.Call():
                return True
            case ast.Name(id=name) if name in _IMPORT_MODULES:
                return True
            case ast.Import() | ast.ImportFrom() if _imported(node) & {*own_names}:
                return True
    return False


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.ImportFrom):
        return {(node.module or "").partition(".")[0]}
    return {alias.name.partition(".")[0] for alias in node.names}


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a statement runs: not the bodies of the functions that it defines."""
    yield node
    children: Iterator[ast.AST] | list[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children = [*node.decorator_list, node.args]
    elif isinstance(node, ast.Lambda):
        children = [node.args]
    for child in children:
        yield from _executed(child)


def _missing_functions(
    path: str, tree: ast.Module, content: bytes, required: Sequence[str]
) -> Iterator[str]:
    if _has_dynamic_names(tree):
        return
    names = _module_names(symtable.symtable(importlib.util.decode_source(content), path, "exec"))
    if "__getattr__" in names:
        return
    missing = [function for function in required if function not in names]
    misnamed = user_module.find_misnamed(tree, missing)
    for function in missing:
        remedy = (
            f"rename {misnamed[function]}, or define it" if function in misnamed else "define it"
        )
        yield (
            f"{path}: the function {function} is missing; {remedy}: it returns"
            f" {user_module.RESULTS[function]}"
        )
    for function, name in user_module.RENAMED.items():
        if function in names and name not in names:
            yield f"{path}: {user_module.describe_renamed(function)}"


def _has_dynamic_names(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in _DYNAMIC_NAMES:
                return True
            case ast.Attribute(attr="__dict__" | "modules"):
                return True
            case ast.ImportFrom(names=[ast.alias(name="*")]):
                return True
    return False


def _module_names(table: symtable.SymbolTable) -> set[str]:
    """Return the names that code binds in its module, also from within functions."""
    is_module = table.get_type() == "module"
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if (is_module or symbol.is_declared_global())
        and (symbol.is_assigned() or symbol.is_imported())
    }
    return names.union(*map(_module_names, table.get_children()))
