"""The comparison from a job to a report."""

import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel.compare import (
    complexity,
    draw,
    execute,
    measure,
    plan,
    progress,
    records,
    report,
    text,
)
from tfparallel.terminal import display
from tfparallel_operator.api import load, types
from tfparallel_operator.local import source

PAGE = "report.md"
MACHINE = "report.json"


def compare(
    given: source.Source,
    wanted: plan.Wanted,
    target: measure.Target | None,
    folder: pathlib.Path,
) -> None:
    """Make all runs, leave the report in a new folder, and show its table.

    Raises:
        SpecError: the job cannot be compared, or the folder is not a new one.
        Failure: a run failed.
        Stopped: a signal ended a run.
    """
    trials = plan.trials(given, wanted)
    _make(folder)
    with progress.Screen(len(trials)) as screen:
        runs = execute.run_all(trials, wanted, folder, screen, target)
    made = report.make(_gathered(given, wanted, target, trials, runs))
    pictures = draw.pictures(made, folder)
    (folder / PAGE).write_text(text.page(made, pictures), encoding="utf-8")
    (folder / MACHINE).write_text(text.machine(made), encoding="utf-8")
    out, _ = display.consoles()
    out.print(text.table(made))
    for line in (*(str(folder / file) for file in (PAGE, MACHINE, *pictures)), *made.verdicts):
        out.print(line, soft_wrap=True)


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise load.SpecError(
            f"--output {folder}: {error.strerror}; give a folder that can be written to"
        ) from error
    if used:
        raise load.SpecError(f"--output {folder}: holds files already; give a new folder")


def _gathered(
    given: source.Source,
    wanted: plan.Wanted,
    target: measure.Target | None,
    trials: Sequence[plan.Trial],
    runs: Mapping[plan.Variant, Sequence[records.Run]],
) -> report.Given:
    trainer = given.job.spec.trainer
    if trainer is None:
        raise AssertionError("plan.trials refuses such a job")
    jobs = {trial.variant.mode: trial.source.job for trial in reversed(trials)}
    return report.Given(
        job=given.job.metadata.name,
        batch=trainer.global_batch_size,
        wanted=wanted,
        runs=runs,
        target=target,
        user_lines=complexity.lines(source.module_text(given, trainer)),
        job_fields=count_fields(jobs),
    )


def count_fields(jobs: Mapping[plan.Mode, types.TFParallelJob]) -> Mapping[plan.Mode, int]:
    """Count the fields of each mode's spec that the other's lacks, or has with another value."""
    fields = {mode: set(_fields(job.spec.model_dump(mode="json"))) for mode, job in jobs.items()}
    everywhere = set.intersection(*fields.values())
    return {mode: len(own - everywhere) for mode, own in fields.items()}


def _fields(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The fields below a value that are given, without templates: those only start our records."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "template":
                yield from _fields(inner, f"{path}.{name}")
    elif value is not None:
        yield path, json.dumps(value)
