"""Checks the language of pages, messages and docstrings: `python -m testing.language`.

Vale checks prose, by the rules in docs/.vale. Without it no prose is checked: one sentence says so,
and a run of CI fails.
"""

import ast
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

from testing import pages, paths
from testing.cluster import binaries, console

RULES = paths.PAGES / ".vale/vale.ini"
CLIENT = paths.ROOT / "client/tfparallel"
OPERATOR = paths.ROOT / "operator/tfparallel_operator"
MESSAGES = (CLIENT, OPERATOR, paths.TRAINER)
"""The packages whose messages are checked."""
DOCUMENTED = (OPERATOR, paths.TRAINER)
"""Files and folders whose docstrings are checked; those of `api` are the descriptions of fields."""
_PARAGRAPHS = re.compile(r"\n\s*\n|\n\s*(?=\w+: |\w+:\n)")
"""Separates two paragraphs, or two arguments."""
_MIN_WORDS = 5
"""Shorter literals are names and parts of tables."""
_NO_PROSE = re.compile(r"import |.*\\\(|[a-z0-9 ]{150,}$")
"""Programs, patterns and lists of names."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A string literal that people read."""

    file: pathlib.Path
    line: int
    text: str


def main() -> int:
    """Print the problems of prose; return the exit status."""
    try:
        binaries.ensure(binaries.LANGUAGE)
    except (console.ClusterError, OSError) as error:
        reason = " ".join(str(error).split())
        print(f"The language is not checked, because Vale cannot be built: {reason}")
        return 1 if os.environ.get("CI") else 0
    prose = [
        *check_pages(pages.ALL),
        *check_messages([message for package in MESSAGES for message in messages(package)]),
        *check_messages([message for path in DOCUMENTED for message in docstrings(path)]),
    ]
    for problem in prose:
        print(problem)
    return 1 if prose else 0


def _modules(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the modules of a folder, or the file itself if it is one."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [file for file in files if file.suffix == ".py"]


def check_pages(files: Sequence[pathlib.Path]) -> list[str]:
    """Return the problems of pages, each as path:line: sentence."""
    faults = _run_vale([str(file) for file in files])
    return [
        _problem(path.removeprefix(f"{paths.ROOT}/"), line, text) for path, line, text in faults
    ]


def check_messages(listed: list[Message]) -> list[str]:
    """Return the problems of messages or docstrings, each as path:line: sentence."""
    with tempfile.TemporaryDirectory() as folder:
        for number, message in enumerate(listed):
            pathlib.Path(folder, f"{number}.txt").write_text(message.text, encoding="utf-8")
        faults = _run_vale([folder])
    return [
        _problem(str(message.file.relative_to(paths.ROOT)), message.line, text)
        for path, _, text in faults
        for message in [listed[int(pathlib.Path(path).stem)]]
    ]


def messages(folder: pathlib.Path) -> Iterator[Message]:
    """Yield the literals of a package that are sentences; a value in one counts as one word."""
    for file in sorted(folder.rglob("*.py")):
        yield from messages_of(file)


def messages_of(file: pathlib.Path) -> Iterator[Message]:
    """Yield those of one file."""
    for line, text in _literals(ast.parse(file.read_text(encoding="utf-8"))):
        if len(text.split()) >= _MIN_WORDS and not _NO_PROSE.match(text):
            yield Message(file, line, text)


def docstrings(path: pathlib.Path) -> Iterator[Message]:
    """Yield the paragraphs of docstrings, those of attributes too; each argument is one."""
    for file in _modules(path):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    for paragraph in _PARAGRAPHS.split(text):
                        yield Message(file, node.lineno, " ".join(paragraph.split()))


def _literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield literals, but no docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.JoinedStr):
            parts = (
                value.value if isinstance(value, ast.Constant) else "value"
                for value in child.values
            )
            yield child.lineno, " ".join("".join(map(str, parts)).split())
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.lineno, " ".join(child.value.split())
        else:
            yield from _literals(child)


def _problem(path: str, line: int, text: str) -> str:
    return f"{path}:{line}: {text}"


def _run_vale(arguments: list[str]) -> list[tuple[str, int, str]]:
    """Return path, line and sentence of each problem.

    Raises:
        RuntimeError: Vale itself fails.
    """
    vale = binaries.path("vale")
    command = [
        str(vale),
        f"--config={RULES}",
        "--no-global",
        "--minAlertLevel=error",
        "--output=line",
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = re.findall(r"^(.+?):(\d+):\d+:[\w.]+:(.+)$", done.stdout, flags=re.MULTILINE)
    if bool(lines) != bool(done.returncode):
        raise RuntimeError(f"Vale failed: {done.stderr or done.stdout}")
    return [(path, int(line), text) for path, line, text in lines]


if __name__ == "__main__":
    sys.exit(main())
