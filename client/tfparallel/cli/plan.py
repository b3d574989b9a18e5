"""`tfparallel plan`."""

import pathlib

import click

from tfparallel.cli import options
from tfparallel.machine import folders
from tfparallel.planning import command as planning
from tfparallel.planning import written
from tfparallel_trainer.contract import job_file, plan


@click.command("plan")
@click.argument("module", type=options.FILE, metavar="MODEL.py")
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
    type=options.FILE,
    metavar="DIR",
    help="Where picture and data go.  [default: a new folder runs/<module>/<time>]",
)
def command(
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
    """Show how ModelSplit would divide a model.

    The plan says which device holds and does what, what fits, and what it costs.

    Exit status: 0 there is a plan, 1 the planner failed, 2 bad input or nothing fits.
    """
    processes, each = written.pods(devices, pods)
    question = plan.Question(
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
    planning.make(question, output or folders.new_folder(module.stem))
