"""The comparison from a job to a report."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel.backends.local import folders
from tfparallel.compare import (
    comparison_pictures,
    comparison_report,
    comparison_text,
    complexity,
    measure,
    progress,
    trial_jobs,
    trial_records,
    trial_runs,
)
from tfparallel.drawing import svg
from tfparallel.job_source import source
from tfparallel.terminal import display, wrapping
from tfparallel_operator.api import load, types

PAGE = "report.md"
MACHINE = "report.json"


def compare(
    job_source: source.JobSource,
    design: trial_jobs.Design,
    target: measure.Target | None,
    folder: pathlib.Path,
) -> None:
    """Make all runs, leave the report in a new folder, and show its table.

    Raises:
        SpecError: the job cannot be compared, or the folder is not a new one.
        Failure: a run failed.
        Stopped: a signal ended a run.
    """
    trials = trial_jobs.trials(job_source, design)
    _make(folder)
    with progress.Screen(len(trials)) as screen:
        runs = trial_runs.run_all(trials, design, folder, screen, target)
    figures = comparison_report.make(_gathered(job_source, design, target, trials, runs))
    pictures = comparison_pictures.pictures(figures) if svg.is_available() else {}
    for file, picture in pictures.items():
        (folder / file).write_text(picture.document, encoding="utf-8")
    titles = {file: picture.title for file, picture in pictures.items()}
    (folder / PAGE).write_text(comparison_text.page(figures, titles), encoding="utf-8")
    (folder / MACHINE).write_text(comparison_text.machine(figures), encoding="utf-8")
    out, _ = display.consoles()
    out.print(comparison_text.table(figures))
    for line in (*(str(folder / file) for file in (PAGE, MACHINE, *pictures)), *figures.verdicts):
        display.print_line(out, line)
    if not pictures:
        wrapping.say(f"note: no pictures: {svg.MISSING}")


def target(written: str) -> measure.Target:
    """Read METRIC=VALUE.

    Raises:
        SpecError: it has another form.
    """
    name, equals, value = written.partition("=")
    try:
        if not name or not equals:
            raise ValueError
        return measure.Target(name, float(value))
    except ValueError as error:
        raise load.SpecError(
            f"--target {written}: write METRIC=VALUE, such as val_accuracy=0.95"
        ) from error


def _make(folder: pathlib.Path) -> None:
    with folders.output(folder):
        used = any(folder.iterdir())
    if used:
        raise load.SpecError(f"--output {folder}: holds files already; give a new folder")


def _gathered(
    job_source: source.JobSource,
    design: trial_jobs.Design,
    target: measure.Target | None,
    trials: Sequence[trial_jobs.Trial],
    runs: Mapping[trial_jobs.Variant, Sequence[trial_records.TrialRun]],
) -> comparison_report.Comparison:
    trainer = job_source.job.spec.trainer
    if trainer is None:
        raise AssertionError("trial_jobs.trials refuses such a job")
    jobs = {trial.variant.mode: trial.source.job for trial in reversed(trials)}
    return comparison_report.Comparison(
        job=job_source.job.metadata.name,
        batch=trainer.global_batch_size,
        design=design,
        runs=runs,
        target=target,
        user_lines=complexity.lines(source.module_text(job_source, trainer)),
        job_fields=count_fields(jobs),
    )


def count_fields(
    jobs: Mapping[trial_jobs.Mode, types.TFParallelJob],
) -> Mapping[trial_jobs.Mode, int]:
    """Count the fields of each mode's spec that the other's lacks, or has with another value."""
    fields = {mode: set(_fields(job.spec.model_dump(mode="json"))) for mode, job in jobs.items()}
    everywhere = set.intersection(*fields.values())
    return {mode: len(fields_of_mode - everywhere) for mode, fields_of_mode in fields.items()}


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The fields that a value has below it, without templates: those only start our records."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "template":
                yield from _fields(inner, f"{path}.{name}")
    elif value is not None:
        yield path, json.dumps(value)
