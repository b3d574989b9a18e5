"""The names that a function uses and does not define. Pure: reads its syntax tree."""

import ast
import builtins
import copy
import symtable
import types
from collections.abc import Iterator, Sequence

_KNOWN = {*dir(builtins), "__file__", "__name__"} - {"display", "get_ipython"}
"""Names that every program has: a notebook's kernel adds two of its own to the builtins."""


def find(node: ast.FunctionDef) -> Sequence[str]:
    """Return the names that the definition of a function needs from around it, sorted.

    Annotations are left out: the program does not evaluate them.
    """
    plain = _Plain().visit(copy.deepcopy(node))
    table = symtable.symtable(ast.unparse(ast.fix_missing_locations(plain)), "function", "exec")
    tables = [*_walk(table)]
    defined = {
        symbol.get_name()
        for inner in tables
        for symbol in inner.get_symbols()
        if symbol.is_assigned() and (inner is table or symbol.is_declared_global())
    }
    used = {
        symbol.get_name()
        for inner in tables
        for symbol in inner.get_symbols()
        if symbol.is_referenced() and (inner is table or symbol.is_global())
    }
    return sorted(used - defined - _KNOWN)


class _Plain(ast.NodeTransformer):
    """Removes annotations and decorators."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.Pass()
        return self.generic_visit(ast.Assign([node.target], node.value))


def _walk(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _walk(child)


def describe(name: str, function: types.FunctionType) -> str:
    """Say how a function can have a name that it uses."""
    around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        value = around[name].cell_contents if name in around else function.__globals__[name]
    except (KeyError, ValueError):
        return f"{name!r} (which is not defined)"
    if isinstance(value, types.ModuleType):
        renamed = "" if value.__name__ == name else f" as {name}"
        return f"{name!r} (write `import {value.__name__}{renamed}` in it)"
    module = getattr(value, "__module__", None)
    if isinstance(value, type | types.FunctionType) and module not in (
        None,
        "__main__",
        function.__module__,
    ):
        renamed = "" if value.__name__ == name else f" as {name}"
        return f"{name!r} (write `from {module} import {value.__name__}{renamed}` in it)"
    if isinstance(value, type | types.FunctionType):
        return f"{name!r} (define it inside)"
    return f"{name!r} (pass it in func_args)"
