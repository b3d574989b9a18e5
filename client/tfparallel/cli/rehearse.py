"""`tfparallel rehearse`."""

import pathlib
import sys
from collections.abc import Sequence

import click

from tfparallel import validation
from tfparallel.backends.local import folders
from tfparallel.cli import exits, options
from tfparallel.job_source import source as sources
from tfparallel.rehearse import faults, rehearsal, rehearsal_text
from tfparallel.terminal import display
from tfparallel_operator.api import load

_JSON = "json"
_FORMATS = ("table", _JSON)
_FILE = "rehearsal.json"


@click.command("rehearse")
@options.job_file
@click.option(
    "--kill",
    "kills",
    multiple=True,
    metavar="REPLICA@STEP",
    help="Kill the replica's process after a step, such as worker-1@40. Repeatable.",
)
@click.option(
    "--freeze",
    "freezes",
    multiple=True,
    metavar="REPLICA@STEP",
    help="Stop the replica's process after a step, as a machine that hangs does. Repeatable.",
)
@click.option(
    "--cut",
    "cuts",
    multiple=True,
    metavar="REPLICA:REPLICA@STEP",
    help="Cut the network between two replicas after a step, such as worker-0:worker-1@40, until"
    " a replica restarts. Repeatable.",
)
@click.option(
    "--disk-full",
    "full_disks",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="STEP",
    help="Let no process write to a file after a step, until it restarts. Repeatable.",
)
@click.option(
    "--slow",
    "slowdowns",
    multiple=True,
    metavar="REPLICAxFACTOR",
    help="Slow the replica from its start on, such as worker-1x5. Repeatable.",
)
@click.option(
    "--mtbf",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="Predict the goodput on a cluster where a node fails after this time on average.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    help="Nodes of the job in that cluster.  [default: one for each replica]",
)
@options.epochs
@click.option(
    "-o",
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="Format of the output.",
)
@options.output_folder("Where both runs go: a new folder.  [default: runs/<job>/<time>]")
@options.overrides
def command(
    job: pathlib.Path,
    *,
    kills: Sequence[str],
    freezes: Sequence[str],
    cuts: Sequence[str],
    full_disks: Sequence[int],
    slowdowns: Sequence[str],
    mtbf: float | None,
    nodes: int | None,
    epochs: int | None,
    output_format: str,
    output: pathlib.Path | None,
    overrides: Sequence[str],
) -> None:
    """Run a job with faults, and show what each of them costs.

    The job runs twice on this machine: first undisturbed, then with the faults. The result has the
    seconds of each phase, the steps that were lost, and whether the weights are the same.

    Exit status: 0 the job survived all faults, 1 it failed or a fault did not happen, 2 bad input,
    130 ended by Ctrl-C.
    """
    if nodes is not None and mtbf is None:
        raise load.SpecError("--nodes: goes with --mtbf; give --mtbf HOURS too")
    scenario = faults.parse_scenario(kills, freezes, slowdowns, full_disks, cuts)
    if mtbf is not None and not scenario.faults:
        raise load.SpecError(
            "--mtbf: needs a fault after which the job restarts; give --kill, such as --kill"
            " worker-1@40"
        )
    overrides = options.with_epochs(overrides, epochs)
    with validation.located(job, overrides):
        source = sources.read(job, overrides)
    replicas = sum(role.replicas for role in source.job.spec.tf_replica_specs.values())
    between_failures = None if mtbf is None else mtbf / (nodes or replicas)
    folder = output or folders.new_folder(source.job.metadata.name)
    result = rehearsal.rehearse(source, scenario, folder, between_failures)
    document = rehearsal_text.build_document(result)
    (folder / _FILE).write_text(f"{document}\n", encoding="utf-8")
    if output_format == _JSON:
        click.echo(document)
    else:
        _print(result, folder / _FILE)
    if result.disturbed.problem or result.missed_faults:
        sys.exit(exits.FAILED)


def _print(result: rehearsal.Rehearsal, file: pathlib.Path) -> None:
    out, _ = display.consoles()
    out.print(rehearsal_text.build_timeline_table(result))
    if result.recoveries:
        out.print()
        out.print(rehearsal_text.build_recovery_table(result))
    out.print()
    for sentence in (*rehearsal_text.describe(result), str(file)):
        display.print_line(out, sentence)
