"""What a screen of 80 columns has room for, and what is shown once only."""

import io
import os
import pathlib
import sys

import pytest
from rich import console as rich_console
from rich import table as rich_table
from rich import text as rich_text

from tfparallel.terminal import display
from tfparallel_operator.api import job_status
from tfparallel_operator.core import decision

_PROGRESS = job_status.ProgressStatus(
    step=400,
    total_steps=1000,
    percent=40,
    examples_per_second="12345.6789",
    eta="1h2m",
    metrics={"accuracy": "0.98123", "loss": "0.123456"},
)


@pytest.mark.parametrize(
    ("number", "shown"),
    [("0.123456", "0.1235"), ("12345.678", "12346"), ("1e-07", "1e-07"), ("NaN", "nan"), ("", "")],
)
def test_numbers_have_four_digits(number: str, shown: str) -> None:
    assert display.short(number) == shown


def test_a_bar_shows_loss_speed_and_time_to_go() -> None:
    assert display.brief_details(_PROGRESS) == "loss 0.1235  12346 ex/s  ETA 1h2m"


def test_a_line_shows_every_metric_with_four_digits() -> None:
    assert display.sentence(_PROGRESS) == (
        "step 400/1000 (40%)  loss 0.1235  accuracy 0.9812  12346 examples/s  ETA 1h2m"
    )


def test_the_lines_that_tensorflow_always_begins_with_are_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The words of TensorFlow 2.21; a warning of the same moment is shown."""
    warning = "W0000 00:00:1795489412.005219   15253 port.cc:99] oneDNN is not used"
    screen = display.Display(())
    for text in (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795489412.005219   15253 port.cc:153] oneDNN custom operations are on. You"
        " may see slightly different numerical results.",
        warning,
    ):
        screen.line("worker-0", text)
    assert capsys.readouterr().out == f"[worker-0] {warning}\n"


@pytest.mark.parametrize(
    ("step", "total", "speed", "loss", "eta"),
    [
        (46, 230, "14678.2", "0.0539123", "9s"),
        (1_234_567, 2_345_678, "1234567.8", "-1.23456e-05", "23h59m"),
        (3, None, None, "NaN", None),
    ],
    ids=["digits", "long", "no-total"],
)
def test_a_bar_of_80_columns_has_all_of_its_parts(
    step: int, total: int | None, speed: str | None, loss: str, eta: str | None
) -> None:
    file = io.StringIO()
    console = rich_console.Console(width=80, file=file, force_terminal=True, color_system=None)
    progress = job_status.ProgressStatus(
        step=step, total_steps=total, examples_per_second=speed, eta=eta, metrics={"loss": loss}
    )
    bar = display.progress_bar(console)
    bar.add_task("training", total=total, completed=step, details=display.brief_details(progress))
    console.print(bar.get_renderable())
    [line] = file.getvalue().splitlines()
    assert len(line) <= 80
    assert "━━━━━" in line
    assert f"{step}/{total or '?'}" in line
    assert (f"{100 * step / total:.0f}%" if total else "") in line
    assert line.rstrip().endswith(display.brief_details(progress))


def test_lines_of_progress_are_a_second_apart_and_the_last_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter((0.0, 0.0, 0.9, 1.0, 1.1))
    screen = display.Display((), clock=lambda: next(seconds))
    for step in (1, 2, 3, 1000):
        screen.progress(_PROGRESS.model_copy(update={"step": step, "percent": None}))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/1000", "3/1000", "1000/1000"]


def test_what_the_trainer_itself_has_said_is_no_line_of_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter(range(10))
    screen = display.Display((), clock=lambda: next(seconds), is_of_trainer=True)
    for step, is_said in ((1, True), (2, True), (2, False), (3, False), (1000, True)):
        if is_said:
            screen.line("worker-0", f"[worker-0] step {step}/1000  epoch 1/5")
        screen.progress(_PROGRESS.model_copy(update={"step": step, "percent": None}))
    shown = capsys.readouterr()
    assert [line.split()[2] for line in shown.out.splitlines()] == ["1/1000", "2/1000", "1000/1000"]
    assert [line.split()[1] for line in shown.err.splitlines()] == ["3/1000"]


@pytest.mark.parametrize(("columns", "width"), [(None, 160), ("80", 80)])
def test_a_file_gets_as_many_columns_as_the_environment_says(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert [console.width for console in display.consoles()] == [width, width]


def test_a_table_in_a_file_has_no_blanks_at_the_end_of_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inner = rich_table.Table.grid()
    inner.add_row("a")
    inner.add_row("b")
    table = rich_table.Table.grid(padding=(0, 2))
    table.add_row("short", "text", "")
    table.add_row(inner, rich_text.Text("longer", overflow="fold"), "end")
    out, _ = display.consoles()
    out.print(table)
    out.print("after")
    assert capsys.readouterr().out.splitlines() == [
        "short  text",
        "a      longer  end",
        "b",
        "after",
    ]


_FAILURE = "/x/model.py: importing it raised KeyError: 1"
_EVENT = decision.JobEvent(
    decision.EventType.WARNING, "ReplicaFailed", f"chief-0 exited with code 65: {_FAILURE}"
)


def test_an_error_is_shown_once_where_both_streams_go_to_one_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for names in (("log", "log"), ("out", "err")):
        out, err = ((tmp_path / name).open("a", buffering=1) for name in names)
        with out, err:
            monkeypatch.setattr(sys, "stdout", out)
            monkeypatch.setattr(sys, "stderr", err)
            screen = display.Display(())
            screen.line("chief-0", f"[chief-0] error: {_FAILURE}.")
            screen.event(_EVENT)
        shown.append((tmp_path / names[1]).read_text())
    together, last = shown
    assert together == (
        f"[chief-0] error: {_FAILURE}.{os.linesep}"
        f"ReplicaFailed: chief-0 exited with code 65{os.linesep}"
    )
    assert last == f"ReplicaFailed: chief-0 exited with code 65: {_FAILURE}{os.linesep}"
    assert screen.has_shown(_EVENT.message)


@pytest.mark.parametrize(
    ("message", "errors", "shown"),
    [
        ("failed: lost: a", ["a", "lost: a", "b"], "failed"),
        ("failed: a (1); no restart is left", ["a (1)"], "failed; no restart is left"),
        ("failed: ab", ["b"], "failed: ab"),
        ("failed: ab", ["a"], "failed: ab"),
        ("failed: a", [], "failed: a"),
        ("failed: a. Mend it.", ["a"], "failed. Mend it."),
    ],
)
def test_only_whole_errors_are_left_out(message: str, errors: list[str], shown: str) -> None:
    assert display.without_errors(message, errors) == shown


def test_an_error_that_a_second_replica_has_too_is_not_repeated(
    capsys: pytest.CaptureFixture[str],
) -> None:
    frame, code = '  File "/x/model.py", line 4, in <module>', "    import pandas"
    with display.Display(()) as screen:
        screen.line("chief-0", frame)
        screen.line("worker-0", frame)
        screen.line("chief-0", code)
        screen.line("worker-0", code)
        screen.line("chief-0", f"[chief-0] error: {_FAILURE}")
        screen.line("worker-0", f"[worker-0] error: {_FAILURE}")
        screen.line("worker-1", "    a table")
        screen.line("worker-1", frame)
        screen.line("worker-1", code)
    assert capsys.readouterr().out.splitlines() == [
        f"[chief-0] {frame}",
        f"[chief-0] {code}",
        f"[chief-0] error: {_FAILURE}",
        "[worker-0] error: the same as that of chief-0",
        "[worker-1]     a table",
        f"[worker-1] {frame}",
        f"[worker-1] {code}",
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("accuracy 0.99  1527.02 examples/s", ["accuracy 0.99  ", "1527.02 examples/s"]),
        ("model /a/path/of/forty/characters", ["model /a/path/of/forty/characters"]),
    ],
)
def test_on_a_terminal_lines_break_between_words_and_a_path_stays_whole(
    text: str, lines: list[str]
) -> None:
    file = io.StringIO()
    console = rich_console.Console(width=20, file=file, force_terminal=True, color_system=None)
    display.print_line(console, text)
    assert file.getvalue().splitlines() == lines


def test_in_a_file_a_line_stays_whole() -> None:
    file = io.StringIO()
    display.print_line(rich_console.Console(width=20, file=file), "word " * 9 + "end")
    assert file.getvalue() == "word " * 9 + "end\n"


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colors", "NO_COLOR"])
def test_no_color_is_heeded(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", **variables}.items():
        monkeypatch.setenv(name, value)
    with display.Display(()) as screen:
        screen.line("chief-0", "a line")
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "a line" in text
    assert ("\x1b[36m" in text) == (not variables)
