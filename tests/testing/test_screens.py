"""A terminal shows what a person would see."""

import os
import pathlib
import sys

import pytest

from testing import screens

BAR = "\r\x1b[2K"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("one\r\ntwo  \r\n\r\n", ["one", "two"]),
        ("\x1b[31mred\x1b[1;31m \x1b[?25lon\x1b[0m", ["red on"]),
        ("abcdefgh", ["abcdef", "gh"]),
        ("abcdef\r\ngh", ["abcdef", "gh"]),
        (f"10%{BAR}line\r\n20%{BAR}end", ["line", "end"]),
        ("one\r\ntwo\x1b[1A\x1b[2K\rnew\r\n", ["new", "two"]),
        ("abc\rx", ["xbc"]),
        ("abc\r\x1b[Kx", ["x"]),
        ("\x1b]8;;https://a.example\x1b\\link\x1b]8;;\x07", ["link"]),
    ],
)
def test_a_terminal_of_six_columns(output: str, shown: list[str]) -> None:
    assert screens.render(output, 6) == shown


PROGRAM = """
import os, signal
try:
    print(os.get_terminal_size().columns, os.isatty(0), os.isatty(2))
    signal.pause()
except KeyboardInterrupt:
    raise SystemExit(len(input("how many? ")))
"""


@pytest.mark.usefixtures("processes")
def test_a_program_sees_a_terminal_and_somebody_at_it(tmp_path: pathlib.Path) -> None:
    command = (sys.executable, "-c", PROGRAM)
    with screens.recorded(command, tmp_path, os.environ) as recording:
        recording.wait_for("80 True True")
        recording.interrupt()
        recording.wait_for("how many?")
        recording.type("abc")
        assert recording.wait(60) == 3
        assert screens.render(recording.output) == ["80 True True", "how many? abc"]
