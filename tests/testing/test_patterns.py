"""Regular expressions that can take longer than their texts are found in the source."""

import pathlib
import re

import pytest

from testing import backtracking, patterns

QUANTITY = r"([-+]?)([0-9]*\.?[0-9]*)([eE][+-]?[0-9]{1,3}|[kKMGTPEmun]?i?)"


@pytest.mark.parametrize(
    ("pattern", "use", "word"),
    [
        (QUANTITY, backtracking.WHOLE, "quadratic"),
        (r"[0-9]+\.?[0-9]*x", backtracking.START, "quadratic"),
        (r".*first.*second", backtracking.START, "quadratic"),
        (r"(?i)[a-z]+[A-Z]*1", backtracking.START, "quadratic"),
        (r"\s+$", backtracking.ANYWHERE, "quadratic"),
        (r"\d+ events", backtracking.ANYWHERE, "quadratic"),
        (r"a(?:.*b)?", backtracking.ANYWHERE, "quadratic"),
        (r"x.{0,2000}y", backtracking.ANYWHERE, "quadratic"),
        (r"(a+)+b", backtracking.START, "exponential"),
        (r"(a|a)*b", backtracking.START, "exponential"),
        (r"(ab|[a-c]b)+!", backtracking.START, "exponential"),
        (r"(a*b*)*c", backtracking.WHOLE, "exponential"),
        (r"(a{0,20}){0,20}b", backtracking.WHOLE, "exponential"),
        (r"(?>a+)b", backtracking.START, "does not understand"),
        (r"(?:x(?=a*b))+", backtracking.START, "does not understand"),
    ],
)
def test_a_pattern_that_tries_too_many_ways(pattern: str, use: str, word: str) -> None:
    assert word in backtracking.judge(pattern, 0, use)


@pytest.mark.parametrize(
    ("pattern", "use"),
    [
        (r"([-+]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]*|)([eE][+-]?[0-9]{1,3}|i?)", backtracking.WHOLE),
        (r"\s+$", backtracking.START),
        (r"\d+", backtracking.ANYWHERE),
        (r"^\s+$", backtracking.ANYWHERE),
        (r"(?m)^#+ (.+)$", backtracking.ANYWHERE),
        (r"(?<![\w.])([\w.]+)\.fit\(", backtracking.ANYWHERE),
        (r"'([^']+)'", backtracking.ANYWHERE),
        (r"\w+(?:\.\w+)*", backtracking.ANYWHERE),
        (r"x.{0,200}y", backtracking.ANYWHERE),
        (r".*first.*", backtracking.START),
    ],
)
def test_a_pattern_that_takes_time_like_its_text(pattern: str, use: str) -> None:
    assert backtracking.judge(pattern, 0, use) == ""


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("P = re.compile('a*a*')\nP.fullmatch(x)", "module.py:2: 'a*a*' can take quadratic time"),
        ("A = 'a*'\nre.fullmatch(rf'{A}{A}', x)", "module.py:3: 'a*a*' can take quadratic time"),
        (
            "A = re.compile('a*')\nB = re.compile(rf'{A.pattern}a*')\nB.fullmatch(A.match(x))",
            "module.py:3: 'a*a*' can take quadratic time",
        ),
        ("re.sub(make(), '', x)", "module.py:2: the pattern is computed"),
        ("P = re.compile('a*b', re.I)\nP.search(x)", "module.py:2: 'a*b' can take quadratic time"),
        ("P = re.compile('a*b')\nP.match(x)\nre.search(re.escape(y), x)", ""),
    ],
)
def test_patterns_are_read_from_the_source(
    source: str, sentence: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "module.py"
    file.write_text(f"import re\n{source}\n", encoding="utf-8")
    problems = patterns.check(file)
    assert len(problems) == bool(sentence)
    assert sentence in "".join(problems)


def test_each_computed_pattern_is_judged() -> None:
    computed = [text for texts in patterns.COMPUTED.values() for text in texts()]
    assert len(computed) > 30
    assert all(re.compile(text) for text in computed)
