"""What a person reads when a run has ended: how, how good the model is, where everything lies."""

import datetime
import pathlib
from collections.abc import Callable, Iterator

import pydantic
from rich import text as rich_text

from tfparallel.backends.local import local_run
from tfparallel.drawing import svg
from tfparallel.planning import plan_picture, plan_tables
from tfparallel.terminal import display, placement
from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import outputs, plan
from tfparallel_trainer.contract import progress as contract_progress

_KEPT = (
    ("model", outputs.MODEL),
    ("SavedModel", outputs.SAVED_MODEL),
    ("checkpoints", outputs.CHECKPOINTS),
    ("TensorBoard", outputs.TENSORBOARD),
)
"""What the shipped trainer leaves for people; the model first, which only success makes."""

_PICTURE = "pipeline.svg"
"""Beside `outputs.PIPELINE`."""


def show(outcome: local_run.RunResult, has_shown: Callable[[str], bool] = lambda _: False) -> None:
    """Print the summary; why a job failed goes to standard error.

    Args:
        outcome: how the run ended.
        has_shown: whether a message has been printed, and is not to be repeated.
    """
    out, err = display.consoles()
    status = outcome.job.status
    failed = conditions.find(status, names.ConditionType.FAILED)
    if outcome.stopped_by is not None:
        headline = f"Stopped by {outcome.stopped_by.name}"
        display.print_line(err, f"stopped; go on with --output {_path(outcome.layout.root)}")
    else:
        headline = str(status.state)
    if failed is not None and not has_shown(failed.message):
        display.print_line(err, f"error: {failed.reason}: {failed.message}")
    style = "bold green" if status.state is names.State.SUCCEEDED else "bold red"
    out.print(rich_text.Text(f"{headline}: {outcome.job.metadata.name}", style))
    rows = list(_rows(outcome))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        out.print(f"{name:{width}}  {value}", soft_wrap=True)  # a path can be copied
    if status.placement is not None:
        out.print(placement.table(status.placement))


def _rows(outcome: local_run.RunResult) -> Iterator[tuple[str, str]]:
    status = outcome.job.status
    if status.start_time is not None:
        ended = status.completion_time or wall_clock.utc_now()
        seconds = max(datetime.timedelta(), ended - status.start_time).total_seconds()
        yield "time", contract_progress.format_duration(seconds)
    if status.verification is not None:
        yield "verified", status.verification.sentence
    if status.restarts.failure or status.restarts.disruption:
        yield "restarts", str(status.restarts.failure + status.restarts.disruption)
    yield from _results(outcome)
    yield "logs", _path(outcome.layout.logs)


def _results(outcome: local_run.RunResult) -> Iterator[tuple[str, str]]:
    status, folder = outcome.job.status, outcome.trained
    succeeded = status.state is names.State.SUCCEEDED
    # The folder may hold the results of an earlier run: they say nothing of one that failed.
    written = _summary(folder / outputs.SUMMARY) if succeeded and folder is not None else None
    if written is not None:
        yield "steps", str(written.steps)
        yield from ((name, _shown(value)) for name, value in written.metrics.items())
    elif status.progress is not None:
        yield from _reported(status.progress)
    if folder is None and succeeded:
        yield from _models_of_script(outcome)
    if folder is not None:
        if succeeded:
            yield from _pipeline(folder)
        for name, below in _KEPT if succeeded else _KEPT[1:]:
            if (folder / below).exists():
                yield name, _path(folder / below)


def _models_of_script(outcome: local_run.RunResult) -> Iterator[tuple[str, str]]:
    """Name the models that a script has written into its claims in this run."""
    began = outcome.job.status.start_time
    for file in sorted(outcome.layout.claims.rglob(f"*{pathlib.Path(outputs.MODEL).suffix}")):
        if file.is_file() and (began is None or file.stat().st_mtime >= began.timestamp()):
            yield "model", _path(file)


def _pipeline(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Draw how the stages of a split model worked, where the run has left that."""
    try:
        stages = plan.Pipeline.model_validate_json((folder / outputs.PIPELINE).read_bytes())
    except (OSError, pydantic.ValidationError):
        return
    yield "stages", plan_tables.waiting(stages)
    if not svg.is_available():
        yield "pipeline", svg.MISSING
        return
    picture = plan_picture.picture_of_run(stages)
    (folder / _PICTURE).write_text(picture.document, encoding="utf-8")
    yield "pipeline", _path(folder / _PICTURE)


def _reported(progress: job_status.ProgressStatus) -> Iterator[tuple[str, str]]:
    total = "" if progress.total_steps is None else f" of {progress.total_steps}"
    yield "steps", f"{progress.step}{total}"
    yield from ((name, display.short(value)) for name, value in progress.metrics.items())


def _shown(value: outputs.Number) -> str:
    return value if isinstance(value, str) else display.short(str(value))


def _path(path: pathlib.Path) -> str:
    """Write a path as short as the working directory allows."""
    here = pathlib.Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _summary(file: pathlib.Path) -> outputs.Summary | None:
    """Read the trainer's summary; None when training did not come to its end."""
    try:
        return outputs.Summary.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, pydantic.ValidationError):
        return None
