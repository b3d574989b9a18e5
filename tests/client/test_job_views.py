"""A job as a line, as HTML, and as a bar that follows it."""

import datetime
import html.parser
import io
import os
import pty
import sys
import types
from typing import Any

import pytest

import tfparallel
from tfparallel import models, progress_bar
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.status import conditions

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def make_job(
    state: names.ConditionType | None = None,
    step: int | None = None,
    *,
    total: int | None = 4,
    message: str = "2/2 run",
    **metrics: str,
) -> models.Job:
    status = job_status.JobStatus(ready="2/2")
    if step is not None:
        progress = job_status.ProgressStatus(
            step=step,
            total_steps=total,
            percent=None if total is None else 100 * step // total,
            metrics=metrics,
            eta="12s",
            examples_per_second="1e3",
        )
        roles = {"Worker": job_status.ReplicaStatus(desired=2, running=2)}
        status = status.model_copy(update={"progress": progress, "replicas": roles})
    if state is not None:
        status = conditions.Stamp(NOW, 1).set(status, state, True, "Why", message)
    return models.Job("digits", "default", "uid", NOW, status, {})


RUNNING = make_job(names.ConditionType.RUNNING, 2, loss="0.123456", accuracy="NaN", weird="text")


def test_a_jobs_progress_has_numbers() -> None:
    progress = RUNNING.progress
    assert progress is not None
    assert progress.metrics["loss"] == pytest.approx(0.123456)
    assert progress.metrics["accuracy"] != progress.metrics["accuracy"]
    assert "weird" not in progress.metrics
    assert (progress.step, progress.total_steps, progress.percent) == (2, 4, 50)
    assert progress.examples_per_second == 1000.0
    assert progress.input_wait is None
    assert make_job().progress is None


def test_a_job_is_one_short_line() -> None:
    assert repr(make_job()) == "<Job digits: Pending, 2/2 replicas>"
    assert repr(RUNNING) == ("<Job digits: Running, 2/2 replicas, step 2/4 (50%), loss 0.1235>")
    assert repr([make_job(step=3, total=None)]) == "[<Job digits: Pending, 2/2 replicas, step 3>]"


class _Text(html.parser.HTMLParser):
    """The text of a page, and its elements with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_html_of_a_job_that_trains() -> None:
    page = _Text(RUNNING._repr_html_())
    assert page.open == []
    assert page.texts[:3] == ["digits", " ", "Running"]
    assert ("progress", {"value": "2", "max": "4"}) in page.elements
    assert " step 2/4 (50%), 12s to go" in page.texts
    assert "accuracy nan, loss 0.1235, weird text" in page.texts
    cells = page.texts[page.texts.index("role") :]
    assert cells[:6] == ["role", "desired", "pending", "running", "succeeded", "failed"]
    assert cells[6:12] == ["Worker", "2", "0", "2", "0", "0"]
    assert "Why" not in page.texts


def test_the_html_of_a_job_that_failed_says_why_and_has_no_time_to_go() -> None:
    failed = make_job(names.ConditionType.FAILED, 3, message="digits-worker-1 exited with code 4")
    text = "".join(_Text(failed._repr_html_()).texts)
    assert "Why: digits-worker-1 exited with code 4" in text
    assert "to go" not in text
    total_unknown = _Text(make_job(names.ConditionType.RUNNING, 3, total=None)._repr_html_())
    assert "progress" not in {tag for tag, _ in total_unknown.elements}


def test_what_pods_say_is_escaped() -> None:
    text = "<script>alert(1)</script>\x1b[31m&\u202e"
    job = make_job(names.ConditionType.FAILED, 1, message=text, loss="<b>1</b>")
    shown = job._repr_html_()
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m&amp;\\u202e" in shown
    assert "loss &lt;b&gt;1&lt;/b&gt;" in shown
    waits = job_status.ReplicaStatus(desired=1, pending=1, reason=text)
    status = job_status.JobStatus(replicas={text: waits})
    shown = models.Job(text, "a", "b", NOW, status, {}, problem=text)._repr_html_()
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 4


def test_a_bar_writes_a_line_into_a_file_at_once_and_at_the_end() -> None:
    file = io.StringIO()
    bar = tfparallel.ProgressBar(file)
    for step in range(4):
        bar(make_job(names.ConditionType.RUNNING, step))
    bar(make_job(names.ConditionType.SUCCEEDED, 4))
    first, last = file.getvalue().splitlines()
    assert first == "digits: Running, 2/2 replicas, step 0/4 (0%)"
    assert last == "digits: Succeeded, 2/2 replicas, step 4/4 (100%)"


def test_a_bar_stays_in_its_line_of_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        bar = tfparallel.ProgressBar(terminal)
        bar(make_job())
        bar(make_job(names.ConditionType.RUNNING, 2))
        bar(make_job(names.ConditionType.SUCCEEDED, 4))
        shown = ""
        while "\n" not in shown:  # a terminal gives what has arrived
            shown += os.read(ours, 10_000).decode()
    os.close(ours)
    parts = shown.split(progress_bar._CLEAR)
    assert parts[0] == ""
    assert parts[1] == "digits: Pending, 2/2 replicas"
    assert parts[2].startswith(f"[{'#' * 12}{'.' * 12}] digits: Running, 2/2 replicas")
    assert parts[3].startswith(f"[{'#' * 24}] digits: Succeeded")
    assert parts[3].endswith("\r\n")


class _Handle:
    def __init__(self, shown: list[Any]) -> None:
        self.shown = shown

    def update(self, shown: Any) -> None:
        self.shown[-1] = shown


def _install_kernel(monkeypatch: pytest.MonkeyPatch, shell: object) -> list[Any]:
    """Have IPython's two functions that a bar uses; return what the notebook shows."""
    shown: list[Any] = []

    def display(job: Any, *, display_id: bool) -> _Handle:
        assert display_id
        shown.append(job)
        return _Handle(shown)

    ipython, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: shell
    vars(module)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_notebook_shows_one_view_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _install_kernel(monkeypatch, types.SimpleNamespace(kernel=1))
    bar = tfparallel.ProgressBar()
    bar(make_job())
    bar(RUNNING)
    assert shown == [RUNNING]
    assert capsys.readouterr() == ("", "")


def test_ipython_on_a_terminal_shows_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _install_kernel(monkeypatch, types.SimpleNamespace())
    tfparallel.ProgressBar()(RUNNING)
    assert shown == []
    assert capsys.readouterr().err.startswith("digits: Running")
