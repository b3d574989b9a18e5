"""A job as a line of text, and as the HTML that a notebook shows. Pure: takes its status."""

import html
from collections.abc import Iterator, Mapping

from tfparallel_operator.api import job_status, names
from tfparallel_trainer.contract import plain_text

_COLORS: Mapping[str, str] = {
    names.State.RUNNING: "#0b7285",
    names.State.SUCCEEDED: "#2b8a3e",
    names.State.FAILED: "#c92a2a",
    names.State.RESTARTING: "#b35900",
}
"""Of states; each can be read on white and on black."""

_CELL = "text-align: left; padding: 0 1em 0 0"


def render_line(name: str, state: str, status: job_status.JobStatus) -> str:
    """Return a job in one line: digits: Running, 2/2 replicas, step 52/114 (45%), loss 0.31.

    Args:
        state: in one word.
    """
    ready = [f"{status.ready} replicas"] if status.ready else []
    return ", ".join([f"{name}: {state}", *ready, *_describe_progress(status.progress)])


def _describe_progress(progress: job_status.ProgressStatus | None) -> Iterator[str]:
    if progress is None:
        return
    yield _describe_steps(progress)
    if "loss" in progress.metrics:
        yield f"loss {_shorten(progress.metrics['loss'])}"


def _describe_steps(progress: job_status.ProgressStatus) -> str:
    total = "" if progress.total_steps is None else f"/{progress.total_steps}"
    percent = "" if progress.percent is None else f" ({progress.percent}%)"
    return f"step {progress.step}{total}{percent}"


def _shorten(number: str) -> str:
    """Return a number with four digits that count; any other text as it is."""
    try:
        return f"{float(number):.4g}"
    except ValueError:
        return number


def render(name: str, state: str, status: job_status.JobStatus, problem: str) -> str:
    """Return a job as HTML: state, progress, metrics, replicas, and why it is in its state.

    Args:
        state: in one word.
        status: the job's; its texts may come from pods, and are escaped.
        problem: why the status cannot be read; empty: it can.
    """
    color = _COLORS.get(state, "inherit")
    parts = [
        f'<b>{_escape(name)}</b> <b style="color: {color}">{_escape(state)}</b>',
        *_render_progress(status, is_over=state in (names.State.SUCCEEDED, names.State.FAILED)),
        *_render_roles(status),
        *_render_cause(state, status, problem),
    ]
    return f"<div>{'<br>'.join(parts)}</div>"


def _escape(text: str) -> str:
    return html.escape(plain_text.escape(text))


def _render_progress(status: job_status.JobStatus, *, is_over: bool) -> Iterator[str]:
    progress = status.progress
    if progress is None:
        return
    eta = "" if progress.eta is None or is_over else f", {progress.eta} to go"
    bar = ""
    if progress.total_steps is not None:
        bar = f'<progress value="{progress.step}" max="{progress.total_steps}"></progress> '
    yield f"{bar}{_escape(_describe_steps(progress) + eta)}"
    if progress.metrics:
        shown = (f"{name} {_shorten(value)}" for name, value in sorted(progress.metrics.items()))
        yield _escape(", ".join(shown))


def _render_roles(status: job_status.JobStatus) -> Iterator[str]:
    if not status.replicas:
        return
    counts = ("desired", "pending", "running", "succeeded", "failed")
    heads = "".join(f'<th style="{_CELL}">{head}</th>' for head in ("role", *counts))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td style="{_CELL}">{_escape(str(cell))}</td>'
            for cell in (role, *(getattr(replicas, count) for count in counts))
        )
        + "</tr>"
        for role, replicas in status.replicas.items()
    )
    yield f"<table><tr>{heads}</tr>{rows}</table>"


def _render_cause(state: str, status: job_status.JobStatus, problem: str) -> Iterator[str]:
    """Yield why a job is in its state, if that is not how jobs go."""
    if problem:
        yield _escape(problem)
    waits = [replicas.reason for replicas in status.replicas.values() if replicas.reason]
    if waits:
        yield _escape(waits[0])
    if state in (names.State.FAILED, names.State.RESTARTING, names.State.SUSPENDED):
        for condition in status.conditions:
            if condition.type == state:
                yield f"<b>{_escape(condition.reason)}</b>: {_escape(condition.message)}"
