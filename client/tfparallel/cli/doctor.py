"""`tfparallel doctor`."""

import asyncio
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator

import click
from rich import table as rich_table
from rich import text as rich_text

from tfparallel import errors
from tfparallel.backends.cluster import access, cluster_backend, doctor_checks
from tfparallel.cli import exits, options
from tfparallel.terminal import display
from tfparallel_operator.api import load

_FREE_BYTES = 2 << 30
"""With less free space, checkpoints and models may not fit."""


@click.command("doctor")
@options.cluster
def command(*, choice: access.ConnectionOptions) -> None:
    """Check the cluster, your rights and this machine, and say what is missing.

    Exit status: 0 nothing is missing, 1 something is.
    """
    checks = [*check_machine(), *asyncio.run(_check_cluster(choice))]
    rows = rich_table.Table.grid(padding=(0, 2))
    for check in checks:
        rows.add_row(check.name, str(check.result), rich_text.Text(check.text, overflow="fold"))
    display.consoles()[0].print(rows)
    if any(check.result is doctor_checks.CheckResult.MISSING for check in checks):
        sys.exit(exits.FAILED)


async def _check_cluster(choice: access.ConnectionOptions) -> list[doctor_checks.Check]:
    try:
        context = access.find(choice)
    except (errors.Failure, load.SpecError) as error:
        return [doctor_checks.Check("kubeconfig", doctor_checks.CheckResult.MISSING, str(error))]
    name = f"context {context.name!r}, namespace {context.namespace!r}"
    first = doctor_checks.Check("kubeconfig", doctor_checks.CheckResult.OK, name)
    async with cluster_backend.ClusterBackend(context) as cluster:
        return [first, *[check async for check in doctor_checks.check(cluster, doctor_checks.ALL)]]


def check_machine() -> Iterator[doctor_checks.Check]:
    """Yield the checks of this machine; only `tfparallel run` and its like need TensorFlow."""
    yield doctor_checks.Check("Python", doctor_checks.CheckResult.OK, platform.python_version())
    if importlib.util.find_spec("tensorflow") is None:
        yield doctor_checks.Check(
            "TensorFlow",
            doctor_checks.CheckResult.WARNING,
            "not installed: run, plan and compare need it. pip install 'tfparallel[local]'",
        )
    else:
        yield doctor_checks.Check("TensorFlow", doctor_checks.CheckResult.OK, "installed")
    free = shutil.disk_usage(".").free
    text = f"{free / 2**30:.0f} GiB free"
    if free < _FREE_BYTES:
        text = f"{text}: local runs keep checkpoints below runs/. Free some"
        yield doctor_checks.Check("disk", doctor_checks.CheckResult.WARNING, text)
    else:
        yield doctor_checks.Check("disk", doctor_checks.CheckResult.OK, text)
