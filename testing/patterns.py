"""Checks that no regular expression backtracks for long: `python -m testing.patterns`."""

import ast
import collections
import dataclasses
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping

from testing import backtracking, paths
from tfparallel_operator.core import remedies

CHECKED = ("client/tfparallel", "operator", "trainer/tfparallel_trainer")
"""The folders whose patterns are checked."""

COMPUTED: Mapping[str, Callable[[], list[str]]] = {
    "operator/tfparallel_operator/core/remedies.py": lambda: [
        row.pattern.pattern for row in remedies.TABLE
    ],
}
"""The patterns of modules that compute them when they are imported."""

_USES = {
    **dict.fromkeys(("search", "findall", "finditer", "split", "sub", "subn"), "search"),
    **{"match": "match", "fullmatch": "fullmatch"},
}
"""The functions of `re`, and of its patterns, by where they look for a pattern."""


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A regular expression in a source file."""

    line: int
    text: str | None
    """None: the source does not say it."""
    flags: int
    use: str


def main() -> int:
    """Print each pattern that can take longer than its text; return the exit status."""
    files = [file for name in CHECKED for file in sorted((paths.ROOT / name).rglob("*.py"))]
    problems = [problem for file in files for problem in check(file)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def check(file: pathlib.Path) -> list[str]:
    """Return a sentence for each pattern of a file that is slow, or that cannot be judged."""
    name = str(file.relative_to(paths.ROOT)) if file.is_relative_to(paths.ROOT) else str(file)
    computed = COMPUTED.get(name)
    problems = [
        f"{name}: {p!r} {backtracking.judge(p)}."
        for p in (computed or list)()
        if backtracking.judge(p)
    ]
    for pattern in find(ast.parse(file.read_text(encoding="utf-8"))):
        if pattern.text is None:
            if computed is None:
                problems.append(
                    f"{name}:{pattern.line}: the pattern is computed, so nobody can judge it. Write"
                    " it as a literal, or list its module in COMPUTED of testing/patterns.py."
                )
        elif sentence := backtracking.judge(pattern.text, pattern.flags, pattern.use):
            problems.append(f"{name}:{pattern.line}: {pattern.text!r} {sentence}.")
    return problems


def find(module: ast.Module) -> Iterator[Pattern]:
    """Yield each pattern of a module."""
    names = {
        target.id: node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    methods: dict[str, set[str]] = collections.defaultdict(set)
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            methods[owner].add(node.attr)
    compiled = {id(value): name for name, value in names.items()}
    for call in ast.walk(module):
        function = _function(call)
        if not isinstance(call, ast.Call) or function not in (*_USES, "compile"):
            continue
        first = call.args[0]
        if isinstance(first, ast.Name) and _function(names.get(first.id)) == "compile":
            continue  # It is judged where it is compiled.
        used = {*methods[compiled.get(id(call), "")]} if function == "compile" else {function}
        uses = {_USES[name] for name in used & _USES.keys()}
        use = next(
            (candidate for candidate in ("search", "match", "fullmatch") if candidate in uses),
            "search",
        )
        yield Pattern(call.lineno, _text(first, names), _flags(call), use)


def _function(node: ast.AST | None) -> str:
    """Return which function of `re` a node calls; empty: none."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=name), args=[_, *_]):
            return name
    return ""


def _text(node: ast.AST | None, names: Mapping[str, ast.expr]) -> str | None:
    """Return the text of an expression of literals; None: it is computed."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Attribute(value=ast.Name(id=name), attr="pattern"):
            return _text(names.get(name), names)
        case ast.Call(args=[text, *_]) if _function(node) == "compile":
            return _text(text, names)
        case ast.Constant(value=bytes(content)):
            return content.decode("latin-1")
        case ast.Name(id=name) if name in names:
            return _text(names[name], {key: value for key, value in names.items() if key != name})
        case ast.FormattedValue(value=value):
            return _text(value, names)
        case ast.JoinedStr(values=parts):
            texts = [_text(part, names) for part in parts]
            return None if None in texts else "".join(map(str, texts))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr="escape")):
            return "word"
        case ast.Call(func=ast.Attribute(value=ast.Constant(value="|"), attr="join")):
            return "word|other"
        case ast.IfExp(body=body):
            return _text(body, names)
    return None


def _flags(call: ast.Call) -> int:
    """Return the flags that a call names."""
    flags = 0
    for node in ast.walk(call):
        if isinstance(node, ast.Attribute) and isinstance(
            getattr(re, node.attr, None), re.RegexFlag
        ):
            flags |= getattr(re, node.attr)
    return int(flags)


if __name__ == "__main__":
    sys.exit(main())
