"""Which files of the trainer run in the processes that each test file starts.

`make test-long` measures it, beside branches, and writes `footprints.json`, which has the places of
files in a list; `make test-changed` selects by it. A file counts when one of its functions ran:
whoever starts the trainer imports most of it.
"""

import ast
import collections
import functools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from testing import branches, paths

PAGE = paths.ROOT / "testing/footprints.json"
PACKAGE = "trainer/tfparallel_trainer"


def may_run(test: str, file: str) -> bool | None:
    """Whether processes of a test file ran a file of the trainer, or may now.

    Args:
        test: path of the test file, below the root.
        file: path of a changed file, below the root.

    Returns:
        None if that was not measured: of a new test, or of one that starts none.
    """
    files, tests = read()
    if test not in tests:
        return None
    return file not in files or file in tests[test]


@functools.cache
def read() -> tuple[frozenset[str], Mapping[str, frozenset[str]]]:
    """Return the files of the trainer, and those that each test file ran."""
    page: dict[str, Any] = json.loads(PAGE.read_text(encoding="utf-8"))
    files: list[str] = page["files"]
    tests = {
        test: frozenset(files[int(place)] for place in ran.split())
        for test, ran in page["tests"].items()
    }
    return frozenset(files), tests


def write() -> None:
    """Write the page from what `branches.measure` has combined."""
    files = sorted(
        file.relative_to(paths.ROOT).as_posix() for file in (paths.ROOT / PACKAGE).rglob("*.py")
    )
    places = {file: at for at, file in enumerate(files)}
    tests: dict[str, set[int]] = collections.defaultdict(set)
    for test, file in _measured():
        if file in places:
            tests[test].add(places[file])
    ran = {test: " ".join(map(str, sorted(tests[test]))) for test in sorted(tests)}
    text = json.dumps({"files": files, "tests": ran}, indent=1)
    PAGE.write_text(f"{text}\n", encoding="utf-8")


def _measured() -> Iterator[tuple[str, str]]:
    """Yield test files and the files whose functions their processes ran."""
    import coverage

    data = coverage.CoverageData(str(branches.DATA))
    data.read()
    for measured in data.measured_files():
        _, package, within = measured.rpartition("/tfparallel_trainer/")
        if not package:
            continue
        bodies = _bodies(pathlib.Path(measured))
        file = f"{PACKAGE}/{within}"
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
