"""Messages come out of the code as sentences, and a run without Vale says so."""

from pathlib import Path

import pytest

from testing import language
from testing.cluster import binaries, console


def test_sentences_are_messages_and_docstrings_are_not(tmp_path: Path) -> None:
    file = tmp_path / "verb.py"
    file.write_text('"""A docstring of five words."""\nx = 1\ny = f"the job {x} is not\\n there"\n')
    assert list(language.messages(tmp_path)) == [
        language.Message(file, 3, "the job value is not there")
    ]


def test_each_paragraph_and_each_argument_of_a_docstring_is_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "verb.py"
    file.write_text(
        '"""First words.\n\nThe rest\nof it.\n"""\nA = "no docstring"\n"""What A is."""\n'
        'def do(x: int) -> None:\n    """Do it.\n\n    Args:\n        x: how often.\n    """\n'
    )
    texts = [(docstring.line, docstring.text) for docstring in language.docstrings(file)]
    assert texts == [
        (1, "First words."),
        (1, "The rest of it."),
        (7, "What A is."),
        (9, "Do it."),
        (9, "Args:"),
        (9, "x: how often."),
    ]
    assert list(language.docstrings(tmp_path)) == list(language.docstrings(file))


def test_a_name_that_is_no_noun_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "verb.py"
    file.write_text(
        "found_roles = record.found\n"
        "def find(given: int) -> None:\n    for _made in (): pass\n"
        "async def told() -> None: ...\nclass Wanted: ...\n"
    )
    problems = [problem.removeprefix(f"{file}:") for problem in language.check_identifiers(file)]
    assert sorted(problem.partition(" is")[0] for problem in problems) == [
        "2: 'given'",
        "3: '_made'",
        "4: 'told'",
        "5: 'Wanted'",
    ]
    assert language.check_identifiers(tmp_path) == language.check_identifiers(file)


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_without_go_one_sentence_says_why_and_ci_fails(
    ci: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise console.ClusterError("Please install Go.")

    monkeypatch.setattr(binaries, "ensure", refuse)
    monkeypatch.setattr(language, "NAMED", ())  # `make lint` checks them
    monkeypatch.setenv("CI", ci)
    assert language.main() == status
    printed = capsys.readouterr().out
    assert printed == (
        "The language is not checked, because Vale cannot be built: Please install Go.\n"
    )
