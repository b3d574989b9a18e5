"""`tfparallel run`."""

import asyncio
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import click

from tfparallel import errors, run_summary, validation
from tfparallel.backends.local import folders, ports
from tfparallel.backends.local import local_run as local_run
from tfparallel.cli import exits, options
from tfparallel.job_source import source as sources
from tfparallel.terminal import display
from tfparallel_operator.api import names, types
from tfparallel_trainer.contract import documentation


@click.command("run")
@options.job_file
@options.output_folder(
    "Where results, checkpoints and logs go; a folder of an earlier run is resumed."
    "  [default: a new folder runs/<job>/<time>]"
)
@click.option(
    "--source",
    "source_folder",
    type=options.FILE,
    metavar="DIR",
    help="Folder of the model's files.  [default: the folder of JOB.yaml]",
)
@options.epochs
@options.overrides
@options.variables
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Fail the job after this time (spec.runPolicy.activeDeadlineSeconds).",
)
def command(
    job: pathlib.Path,
    *,
    output: pathlib.Path | None,
    source_folder: pathlib.Path | None,
    epochs: int | None,
    overrides: Sequence[str],
    variables: Mapping[str, str],
    timeout: int | None,
) -> None:
    """Run a job on this machine, without a cluster.

    Each pod becomes a process.

    Exit status: 0 the job succeeded, 1 it failed, 2 bad input, 130 ended by Ctrl-C.
    """
    overrides = options.with_epochs(overrides, epochs)
    if timeout is not None:
        overrides = (*overrides, f"spec.runPolicy.activeDeadlineSeconds={timeout}")
    with validation.located(job, overrides):
        source = sources.read(job, overrides, source_folder, variables)
        folder = output or folders.new_folder(source.job.metadata.name)
        notes = [*source.notes, *_note_on_network(source.job, folder)]
        is_of_trainer = source.job.spec.trainer is not None
        with display.Display(notes, is_of_trainer=is_of_trainer) as screen:
            outcome = asyncio.run(local_run.run(source, folder, screen))
    run_summary.show(outcome, screen.has_shown)
    if outcome.stopped_by is not None:
        raise errors.Stopped(outcome.stopped_by)
    if outcome.job.status.state is not names.State.SUCCEEDED:
        sys.exit(exits.FAILED)


def _note_on_network(job: types.TFParallelJob, folder: pathlib.Path) -> Iterator[str]:
    """Warn at a job's first run if other machines can reach its processes."""
    processes = sum(role.replicas for role in job.spec.tf_replica_specs.values())
    if processes > 1 and not folder.parent.exists() and ports.has_route():
        section = documentation.reference(documentation.Section.LOCAL_NETWORK)
        yield f"TensorFlow's servers also listen on this machine's network. See {section}"
