"""The page on threats names tests that exist."""

import ast
import re

from testing import paths

PAGE = paths.PAGES / "operate/threats.md"


def test_each_test_that_the_page_names_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) == text.count("`tests/") > 10
    for file, test in named:
        tree = ast.parse((paths.ROOT / file).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        functions = {node.name for node in tree.body if isinstance(node, kinds)}
        assert test in functions, f"{file}::{test}"
