"""Names and phrases that make readers stumble are counted, and limits only fall."""

import ast
import json
import pathlib
import re

import pytest

from testing import words

SOURCE = """
import json
from package import layout

def take(given, layout): self.place = one = json

def take_gradient(gradient): gradients = [each for each in gradient]
"""


@pytest.fixture
def page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    copy = tmp_path / "words.json"
    copy.write_text(words.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(words, "PAGE", copy)
    return copy


def test_names_that_are_no_nouns_shadow_a_module_or_lack_an_object_count() -> None:
    vocabulary = words.Vocabulary({}, {"given", "place", "one", "each"}, {"take"}, re.compile("x"))
    source, nodes = pathlib.PurePath("trainer/a.py"), [*ast.walk(ast.parse(SOURCE))]
    stumbles = {
        (stumble.kind, stumble.text) for stumble in words.find_names(source, nodes, vocabulary)
    }
    bound = {("bound", name) for name in ("given", "place", "one", "each")}
    assert stumbles == {*bound, ("shadows", "layout"), ("verbs", "take")}


def test_modules_and_classes_of_one_name_count_once_for_each_package() -> None:
    texts = {
        "trainer/a/run.py": "class Outcome: ...",
        "trainer/b/run.py": "class Outcome: ...",
        "trainer/c/run.py": "class Outcome: ...",
        "client/run.py": "class Outcome: ...",
    }
    modules = {pathlib.PurePath(name): [*ast.walk(ast.parse(text))] for name, text in texts.items()}
    twins = [(stumble.package, stumble.text) for stumble in words.find_twins(modules)]
    assert twins == [("trainer", "run"), ("trainer", "Outcome")]


def test_a_limit_falls_to_its_count_and_never_rises(page: pathlib.Path) -> None:
    limits = words.Vocabulary.read().limits
    words.record({**limits, "bound": limits["bound"] + 1, "twins": 0})
    assert json.loads(page.read_text(encoding="utf-8"))["limits"] == {**limits, "twins": 0}
    assert not words.compare(limits, limits)
    above, below = words.compare({**limits, "bound": limits["bound"] + 1, "twins": 0}, limits)
    assert above.startswith("bound: ")
    assert "above the limit" in above
    assert "twins: 0 are below the limit" in below
