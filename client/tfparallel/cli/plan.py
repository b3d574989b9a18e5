"""`tfparallel plan`."""

import pathlib
from typing import Any

import click

from tfparallel.backends.local import folders
from tfparallel.cli import options
from tfparallel.planning import plan_output as planning
from tfparallel.planning import request
from tfparallel_operator.api import load
from tfparallel_trainer.contract import gpu_types, job_file

_JSON = "json"
_FORMATS = ("table", _JSON)


@click.command("plan")
@click.argument("file", type=options.FILE, metavar="JOB.yaml|MODEL.py")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Devices of all pods together.  [default: those of the job; a MODEL.py needs it]",
)
@click.option(
    "--pods",
    type=click.IntRange(min=1),
    help="Pods that share them.  [default: those of the job; of a MODEL.py one for each device]",
)
@click.option(
    "--device-type",
    type=click.Choice(list(gpu_types.DEVICE_TYPES), case_sensitive=False),
    help="The GPU that times and memory are those of.  [default: that of the job's nodeSelector,"
    " else cores of a processor]",
)
@click.option(
    "--memory",
    metavar="BYTES",
    help="Limit of each device, such as 8GiB.  [default: that of the device type, else no limit]",
)
@click.option(
    "--mesh",
    metavar="AXIS=NUMBER,...",
    help="Axes, such as data=2,stage=2. -1 takes the remaining devices; auto is the best mesh that"
    " fits."
    "  [default: that of the job, else auto]",
)
@click.option(
    "--microbatches",
    type=click.IntRange(min=1),
    help="Parts of a batch.  [default: those of the job's mesh, else the best that fits]",
)
@click.option(
    "--schedule",
    type=click.Choice([schedule.value for schedule in job_file.PipelineSchedule]),
    help="Order of the work.  [default: that of the job's mesh, else 1F1B]",
)
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Examples of a step.  [default: that of the job, else 32]",
)
@click.option(
    "--length",
    type=click.IntRange(min=1),
    help="Value for input dimensions that are unknown until data is loaded.",
)
@click.option(
    "--calibrate", is_flag=True, help="Measure layers, updates and links on this machine first."
)
@click.option(
    "-o",
    "--format",
    "output_format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="Format of the output. With json no files are written, unless you give --output.",
)
@options.output_folder(
    "Where picture and data go.  [default: a new folder runs/<job or model>/<time>]"
)
@options.overrides
def command(
    file: pathlib.Path, output_format: str, output: pathlib.Path | None, **values: Any
) -> None:
    """Show how ModelSplit would divide the model of a job.

    The plan says which device holds and does what, what fits, and what it costs. Options go before
    the fields of the job.

    Exit status: 0 there is a plan, 1 the planner failed, 2 bad input or nothing fits.
    """
    if output is not None and str(output) in _FORMATS:
        raise load.SpecError(f"--output {output} names a folder: for the form, give -o {output}")
    subject = request.read(file, request.PlanOptions(**values))
    if output_format == _JSON:
        planning.print_json(subject, output)
    else:
        planning.print_tables(subject, output or folders.new_folder(subject.name))
