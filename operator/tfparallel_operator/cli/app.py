"""The commands: their arguments, their exit statuses."""

import asyncio
import datetime
import importlib.metadata
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from tfparallel_operator.api import load, names
from tfparallel_operator.cli import display, summary
from tfparallel_operator.cli import status as cluster_status
from tfparallel_operator.cli.compare import command, execute, plan
from tfparallel_operator.cli.convert import command as conversion
from tfparallel_operator.cli.planning import ask, written
from tfparallel_operator.cli.planning import command as planning
from tfparallel_operator.engine import credentials, errors
from tfparallel_operator.local import run as local_run
from tfparallel_operator.local import source
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.contract import plan as contract_plan

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_SIGNAL = 128
"""Plus the number of the signal that ended the run: 130 after Ctrl-C."""

_FILE = click.Path(path_type=pathlib.Path)

_OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of the job, such as spec.trainer.epochs=3; null removes it. Repeatable.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def tfparallel() -> None:
    """Train TensorFlow models with TFParallelJob."""


@tfparallel.command()
@click.argument("job", type=_FILE, metavar="JOB.yaml")
@click.option(
    "--output",
    type=_FILE,
    metavar="DIR",
    help="Where results, checkpoints and logs go; a folder of an earlier run is gone on with."
    "  [default: a new folder runs/<job>/<time>]",
)
@_OVERRIDES
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    metavar="SECONDS",
    help="Fail the job after this time (spec.runPolicy.activeDeadlineSeconds).",
)
def run(
    job: pathlib.Path,
    output: pathlib.Path | None,
    overrides: Sequence[str],
    timeout: int | None,
) -> None:
    """Run a job on this machine, one process for each pod, without a cluster.

    Exit status: 0 the job succeeded, 1 it failed, 2 bad input, 130 ended by Ctrl-C.
    """
    if timeout is not None:
        overrides = (*overrides, f"spec.runPolicy.activeDeadlineSeconds={timeout}")
    try:
        given = source.read(job, overrides)
        folder = output or _new_folder(given.job.metadata.name)
        with display.Display(given.notes) as screen:
            outcome = asyncio.run(local_run.run(given, folder, screen))
    except load.SpecError as error:
        _refuse(error)
    except KeyboardInterrupt:  # before the run takes care of it: nothing has been started
        sys.exit(EXIT_SIGNAL + 2)
    summary.show(outcome)
    if outcome.stopped_by is not None:
        sys.exit(EXIT_SIGNAL + outcome.stopped_by)
    if outcome.job.status.state is not names.State.SUCCEEDED:
        sys.exit(EXIT_FAILED)


@tfparallel.command()
@click.argument("job", type=_FILE, metavar="JOB.yaml")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True)
@click.option(
    "--servers", type=click.IntRange(min=1), default=1, show_default=True, help="Of async."
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="How often each run is made, with spec.trainer.seed and those that follow.",
)
@click.option(
    "--slow-worker",
    type=click.FloatRange(min=1, min_open=True),
    metavar="FACTOR",
    help="Make each run also with the last worker this many times slower.",
)
@click.option(
    "--equal-batch",
    type=click.Choice([one.value for one in plan.Equal]),
    default=plan.Equal.UPDATE.value,
    show_default=True,
    help="What has globalBatchSize examples in async too: an update of the weights, or all workers"
    " together.",
)
@click.option(
    "--target",
    metavar="METRIC=VALUE",
    help="Tell how long it takes to a value, such as val_accuracy=0.95."
    "  [default: the loss that every run reaches]",
)
@click.option("--epochs", type=click.IntRange(min=1), help="Short for --set spec.trainer.epochs.")
@click.option(
    "--output",
    type=_FILE,
    metavar="DIR",
    help="Where report, pictures and runs go: a new folder.  [default: runs/<job>/<time>]",
)
@_OVERRIDES
def compare(
    job: pathlib.Path,
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
    """Train a job synchronously and asynchronously on this machine, and compare the two.

    Exit status: 0 all runs succeeded, 1 one failed, 2 bad input, 130 ended by Ctrl-C.
    """
    wanted = plan.Wanted(
        workers=workers,
        servers=servers,
        seeds=seeds,
        slow_worker=slow_worker,
        equal=plan.Equal(equal_batch),
    )
    if epochs is not None:
        overrides = (*overrides, f"spec.trainer.epochs={epochs}", "spec.trainer.steps=null")
    try:
        aim = None if target is None else command.target(target)
        given = source.read(job, overrides)
        folder = output or _new_folder(given.job.metadata.name)
        command.compare(given, wanted, aim, folder)
    except load.SpecError as error:
        _refuse(error)
    except execute.RunFailedError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except execute.StoppedError as error:
        sys.exit(EXIT_SIGNAL + error.number)
    except KeyboardInterrupt:  # between two runs: nothing runs
        sys.exit(EXIT_SIGNAL + 2)


@tfparallel.command("plan")
@click.argument("module", type=_FILE, metavar="MODEL.py")
@click.option("--devices", type=click.IntRange(min=1), required=True, help="Of all pods together.")
@click.option("--pods", type=click.IntRange(min=1), help="[default: one for each device]")
@click.option(
    "--memory", metavar="BYTES", help="Of each device, such as 8GiB.  [default: no limit]"
)
@click.option(
    "--mesh",
    metavar="AXIS=NUMBER,...",
    help="Such as data=2,stage=2; -1 is what is left.  [default: the best that fits]",
)
@click.option("--microbatches", type=click.IntRange(min=1), help="[default: the best that fits]")
@click.option(
    "--schedule",
    type=click.Choice([one.value for one in job_file.PipelineSchedule]),
    default=job_file.PipelineSchedule.ONE_FORWARD_ONE_BACKWARD.value,
    show_default=True,
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="trainer.globalBatchSize.",
)
@click.option(
    "--length",
    type=click.IntRange(min=1),
    help="Stands for dimensions of the inputs that only the data tells.",
)
@click.option("--calibrate", is_flag=True, help="Measure each layer on this machine first.")
@click.option(
    "--output",
    type=_FILE,
    metavar="DIR",
    help="Where picture and data go.  [default: a new folder runs/<module>/<time>]",
)
def plan_(
    module: pathlib.Path,
    devices: int,
    pods: int | None,
    memory: str | None,
    mesh: str | None,
    microbatches: int | None,
    schedule: str,
    batch: int,
    length: int | None,
    calibrate: bool,
    output: pathlib.Path | None,
) -> None:
    """Say how ModelSplit would divide a model among devices, what fits, and what it costs.

    Exit status: 0 there is a plan, 1 the planner failed, 2 bad input or nothing fits.
    """
    try:
        processes, each = written.pods(devices, pods)
        question = contract_plan.Question(
            folder=str(module.resolve().parent),
            module=module.name,
            processes=processes,
            devices=each,
            memory=None if memory is None else written.size(memory),
            mesh=None if mesh is None else written.mesh(mesh),
            microbatches=microbatches,
            schedule=job_file.PipelineSchedule(schedule),
            batch=batch,
            length=length,
            calibrate=calibrate,
        )
        planning.make(question, output or _new_folder(module.stem))
    except load.SpecError as error:
        _refuse(error)
    except ask.PlannerFailedError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:  # the trainer got it too
        sys.exit(EXIT_SIGNAL + 2)


@tfparallel.command()
@click.argument("files", type=_FILE, nargs=-1, required=True, metavar="FILE...")
def validate(files: Sequence[pathlib.Path]) -> None:
    """Check the jobs of files as the API server would, without one."""
    problems: list[str] = []
    for file in files:
        try:
            documents = load.parse_documents(source.read_text(file), str(file))
            load.parse_manifest(load.find_job(documents, str(file)))
        except load.SpecError as error:
            problems += error.problems
        else:
            click.echo(f"{file}: valid")
    if problems:
        _refuse(load.SpecError(*problems))


@tfparallel.command()
@click.argument("files", type=_FILE, nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--defaults",
    type=click.Choice(["tfjob", "tfparallel"]),
    default="tfjob",
    show_default=True,
    help="Of fields that a TFJob leaves out: written as TFJob has them, or left out as here.",
)
def convert(files: Sequence[pathlib.Path], defaults: str) -> None:
    """Write the TFJobs of files as TFParallelJobs, and tell what differs; - reads standard input.

    Exit status: 0 all are converted, 2 bad input, and nothing is written.
    """
    try:
        written = conversion.convert(files, write_defaults=defaults == "tfjob")
    except load.SpecError as error:
        _refuse(error)
    for notice in written.notices:
        click.echo(f"note: {notice}", err=True)
    click.echo(written.text, nl=False)


@tfparallel.command()
@click.argument("name", metavar="NAME")
@click.option("-n", "--namespace", default="default", show_default=True)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    help="How to reach the cluster.  [default: that of kubectl]",
)
def status(name: str, namespace: str, kubeconfig: str | None) -> None:
    """Show a job in a cluster: progress, replicas, and where the parts of a split model are.

    Exit status: 0 it is shown, 1 the cluster gives no answer, 2 there is no such job.
    """
    try:
        access = credentials.find(kubeconfig or cluster_status.kubeconfig())
        found = asyncio.run(cluster_status.fetch(name, namespace, access))
    except load.SpecError as error:
        _refuse(error)
    except (credentials.CredentialsError, errors.ApiError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_FAILED)
    cluster_status.show(name, found)


@tfparallel.command()
def version() -> None:
    """Print the version."""
    click.echo(f"tfparallel {importlib.metadata.version('tfparallel-operator')}")


def _refuse(error: load.SpecError) -> NoReturn:
    for problem in error.problems:
        click.echo(f"error: {problem}", err=True)
    sys.exit(EXIT_BAD_INPUT)


def _new_folder(job_name: str) -> pathlib.Path:
    """Return a folder for the results that no run has used, named by the time."""
    moment = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    base = pathlib.Path("runs", job_name)
    number, folder = 2, base / moment
    while folder.exists():
        number, folder = number + 1, base / f"{moment}-{number}"
    return folder
