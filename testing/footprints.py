"""Which files of the trainer run in the processes that each test file starts.

`make test-long` measures it, beside branches, and writes `footprints.json`, which has the places of
files in a list; `make test-changed` selects by it. A file counts when one of its functions ran:
whoever starts the trainer imports most of it.

The record grows old: what a test runs changes with it, with the models that it trains, and with the
files that it ran. Where one of these has changed since the recorded commit, more may run.
"""

import ast
import collections
import functools
import json
import pathlib
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from testing import branches, paths
from testing.pytest_plugin import graph

PAGE = paths.ROOT / "testing/footprints.json"
PACKAGE = "trainer/tfparallel_trainer"
MODELS = ("benchmarks/", "examples/", "testing/trainer/", "tests/e2e/models/")
"""What tests train, and how they start it."""


def may_run(test: str, file: str) -> bool | None:
    """Whether processes of a test file ran a file of the trainer, or may now.

    Args:
        test: path of the test file, below the root.
        file: path of a changed file, below the root.

    Returns:
        None if that is not known: of a new or changed test, of one that starts none, or where
        models have changed since the record.
    """
    commit, files, tests = read()
    if test not in tests:
        return None
    if file not in files or file in tests[test]:
        return True
    changed = changed_since(commit)
    if changed is None or test in changed or any(each.startswith(MODELS) for each in changed):
        return None
    return any(
        paths.ROOT / file in graph.files_reached(paths.ROOT / each)
        for each in tests[test] & changed
        if (paths.ROOT / each).exists()
    )


@functools.cache
def read() -> tuple[str, frozenset[str], Mapping[str, frozenset[str]]]:
    """Return the recorded commit, the trainer's files then, and those that each test file ran."""
    page: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    files: list[str] = page["files"]
    tests = {
        test: frozenset(files[int(place)] for place in ran.split())
        for test, ran in page["tests"].items()
    }
    return page.get("commit", ""), frozenset(files), tests


@functools.cache
def changed_since(commit: str) -> frozenset[str] | None:
    """Return the Python files that differ from a commit; None if this clone does not have it."""
    command = ["git", "diff", "--name-only", "--no-renames", commit, "--", "*.py"]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=False)
    return frozenset(done.stdout.splitlines()) if commit and done.returncode == 0 else None


def write(commit: str) -> None:
    """Write the page from what `branches.measure` has combined of a run of a commit."""
    files = sorted(
        file.relative_to(paths.ROOT).as_posix() for file in (paths.ROOT / PACKAGE).rglob("*.py")
    )
    places = {file: at for at, file in enumerate(files)}
    tests: dict[str, set[int]] = collections.defaultdict(set)
    for test, file in _measured():
        if file in places:
            tests[test].add(places[file])
    ran = {test: " ".join(map(str, sorted(tests[test]))) for test in sorted(tests)}
    text = json.dumps({"commit": commit, "files": files, "tests": ran}, indent=1)
    PAGE.write_text(f"{text}\n", encoding="utf-8")


def _measured() -> Iterator[tuple[str, str]]:
    """Yield test files and the files whose functions their processes ran."""
    import coverage

    data = coverage.CoverageData(str(branches.DATA))
    data.read()
    for measured in data.measured_files():
        if not pathlib.Path(measured).is_relative_to(paths.ROOT / PACKAGE):
            continue  # of the operator or the client, or of an earlier version
        bodies = _bodies(pathlib.Path(measured))
        file = pathlib.Path(measured).relative_to(paths.ROOT).as_posix()
        contexts = {
            context
            for line, test_contexts in data.contexts_by_lineno(measured).items()
            if line in bodies
            for context in test_contexts
        }
        for context in contexts:
            test = context.rpartition("|")[2].partition("::")[0]
            if test:
                yield test, file


def _bodies(file: pathlib.Path) -> frozenset[int]:
    """The lines within functions."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        line
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, functions)
        for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    )
