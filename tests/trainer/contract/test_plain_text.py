"""Text of others: its control characters are shown, and it has an end."""

import pytest

from tfparallel_trainer.contract import plain_text


def test_control_characters_are_shown() -> None:
    text = "\x1b[2J \x07 \x9b31m \u202egpj.exe \ud800"
    assert plain_text.escape(text) == r"\x1b[2J \x07 \x9b31m \u202egpj.exe \ud800"
    ordinary = "Größe 層 👩\u200d💻 \\ ~"
    assert plain_text.escape(ordinary) == ordinary
    assert plain_text.escape("a\tb\r\n\x1b", keep="\r\t\n") == "a\tb\r\n\\x1b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("short", "short"),
        ("two\n  lines\r\nmore", "two lines more"),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 17 + "..."),
        ("é" * 20, "é" * 8 + "..."),
        ("\x1b" * 20, r"\x1b" * 4 + "\\..."),
        ("\n" * 1000, " ..."),
        ("", ""),
    ],
)
def test_a_text_is_cut_to_one_line_of_so_many_bytes(text: str, shown: str) -> None:
    line = plain_text.shorten(text, 20)
    assert line == shown
    assert len(line.encode()) <= 20
