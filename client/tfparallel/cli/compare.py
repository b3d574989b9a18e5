"""`tfparallel compare`."""

import pathlib
from collections.abc import Sequence

import click

from tfparallel import validation
from tfparallel.backends.local import folders
from tfparallel.cli import options
from tfparallel.compare import existing, measure, trial_jobs
from tfparallel.compare import job_comparison as comparison
from tfparallel.job_source import source as sources
from tfparallel.results import folder as results
from tfparallel_operator.api import load


@click.command("compare")
@click.argument(
    "paths", type=options.FILE, nargs=-1, required=True, metavar="JOB.yaml | --runs DIR DIR..."
)
@click.option(
    "--runs",
    "are_runs",
    is_flag=True,
    help="Compare runs that exist already: folders such as runs/<job>/<time>. Of the other options,"
    " only --target goes with it.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Workers of each job.",
)
@click.option(
    "--servers", type=click.IntRange(min=1), default=1, show_default=True, help="Servers of async."
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Runs of each variant, with spec.trainer.seed and the next ones.",
)
@click.option(
    "--slow-worker",
    type=click.FloatRange(min=1, min_open=True),
    metavar="FACTOR",
    help="Repeat each run with the last worker this many times slower.",
)
@click.option(
    "--equal-batch",
    type=click.Choice([equal.value for equal in trial_jobs.Equal]),
    default=trial_jobs.Equal.UPDATE.value,
    show_default=True,
    help="What has globalBatchSize examples in async too: an update of the weights, or all workers"
    " together.",
)
@click.option(
    "--target",
    metavar="METRIC=VALUE",
    help="Report the time to a value, such as val_accuracy=0.95."
    "  [default: the loss that every run reaches]",
)
@options.epochs
@options.output_folder(
    "Where report, pictures and runs go: a new folder.  [default: runs/<job>/<time>]"
)
@options.overrides
@click.pass_context
def command(
    context: click.Context,
    *,
    paths: Sequence[pathlib.Path],
    are_runs: bool,
    workers: int,
    servers: int,
    seeds: int,
    slow_worker: float | None,
    equal_batch: str,
    target: str | None,
    epochs: int | None,
    output: pathlib.Path | None,
    overrides: Sequence[str],
) -> None:
    """Compare synchronous with asynchronous training, or any runs.

    All runs of JOB.yaml train on this machine; the report has a table and pictures. Its last
    sentence says which mode reaches the target first, and by what factor.

    Exit status: 0 all runs succeeded, 1 one failed, 2 bad input, 130 ended by Ctrl-C.
    """
    aim = None if target is None else comparison.target(target)
    if are_runs:
        _compare_runs(context, paths, aim)
        return
    if len(paths) > 1:
        raise load.SpecError(f"{paths[1]}: one job is compared; give --runs to compare folders")
    design = trial_jobs.Design(
        workers=workers,
        servers=servers,
        seeds=seeds,
        slow_worker=slow_worker,
        equal=trial_jobs.Equal(equal_batch),
    )
    overrides = options.with_epochs(overrides, epochs)
    with validation.located(paths[0], overrides):
        source = sources.read(paths[0], overrides)
    folder = output or folders.new_folder(source.job.metadata.name)
    comparison.compare(source, design, aim, folder)


def _compare_runs(
    context: click.Context, paths: Sequence[pathlib.Path], target: measure.Target | None
) -> None:
    used = [
        name
        for name in context.params
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    for name in used:
        if name not in ("paths", "are_runs", "target"):
            option = name.replace("overrides", "set").replace("_", "-")
            raise load.SpecError(f"--{option} makes new runs; remove it, or --runs")
    if len(set(paths)) < 2:
        raise load.SpecError(f"--runs: received {len(set(paths))} folder; give two or more")
    existing.compare({str(path): results.find(path).path for path in paths}, target)
