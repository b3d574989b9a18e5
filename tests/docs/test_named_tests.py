"""Tests, scripts in `findings/` and modules that pages name exist."""

import ast
import re

import pytest

from testing import paths

_PLACES = (
    paths.ROOT / "operator/tfparallel_operator",
    paths.ROOT / "client/tfparallel",
    paths.TRAINER,
    paths.CHART,
    paths.ROOT / "testing",
)


@pytest.mark.parametrize(
    "page", ["operate/threats.md", "explanation/keras.md", "benchmarks/truth.md"]
)
def test_each_test_that_a_page_names_exists(page: str) -> None:
    text = (paths.PAGES / page).read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) == text.count("`tests/") > 1
    for file, test in named:
        tree = ast.parse((paths.ROOT / file).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        functions = {node.name for node in tree.body if isinstance(node, kinds)}
        assert test in functions, f"{file}::{test}"


def test_the_page_on_keras_names_each_script_about_keras() -> None:
    text = (paths.PAGES / "explanation/keras.md").read_text(encoding="utf-8")
    scripts = [path.name for path in (paths.ROOT / "findings").glob("*.sh")]
    about = {name for name in scripts if name.startswith(("keras-", "mirrored-", "tf-"))}
    assert {*re.findall(r"`findings/([\w.-]+)`", text)} == about


@pytest.mark.parametrize("page", ["docs/explanation/architecture.md", "CONTRIBUTING.md"])
def test_each_module_that_a_page_names_exists(page: str) -> None:
    """A name without a folder may be anywhere in a product, the chart or `testing`."""
    text = (paths.ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+\.(?:py|tpl|yaml))`", text)
    assert len(named) > 20
    missing = [
        name
        for name in named
        if not any((folder / name).exists() for folder in (paths.ROOT, *_PLACES))
        and ("/" in name or not any(any(folder.rglob(name)) for folder in _PLACES))
    ]
    assert missing == []
