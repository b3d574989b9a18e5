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
from tfparallel.backends.cluster import access, backend, checkup
from tfparallel.cli import exits, options
from tfparallel.terminal import display
from tfparallel_operator.api import load

_FREE_BYTES = 2 << 30
"""Less is little for checkpoints and models."""


@click.command("doctor")
@options.cluster
def command(*, choice: access.Choice) -> None:
    """Check the cluster, your rights and this machine, and say what is missing.

    Exit status: 0 nothing is missing, 1 something is.
    """
    checks = [*check_machine(), *asyncio.run(_check_cluster(choice))]
    rows = rich_table.Table.grid(padding=(0, 2))
    for check in checks:
        rows.add_row(check.name, str(check.result), rich_text.Text(check.text, overflow="fold"))
    display.consoles()[0].print(rows)
    if any(check.result is checkup.Result.MISSING for check in checks):
        sys.exit(exits.FAILED)


async def _check_cluster(choice: access.Choice) -> list[checkup.Check]:
    try:
        context = access.find(choice)
    except (errors.Failure, load.SpecError) as error:
        return [checkup.Check("kubeconfig", checkup.Result.MISSING, str(error))]
    name = f"context {context.name!r}, namespace {context.namespace!r}"
    first = checkup.Check("kubeconfig", checkup.Result.OK, name)
    async with backend.ClusterBackend(context) as cluster:
        return [first, *[check async for check in checkup.check(cluster, checkup.ALL)]]


def check_machine() -> Iterator[checkup.Check]:
    """Yield the checks of this machine; only `tfparallel run` and its like need TensorFlow."""
    yield checkup.Check("Python", checkup.Result.OK, platform.python_version())
    if importlib.util.find_spec("tensorflow") is None:
        yield checkup.Check(
            "TensorFlow",
            checkup.Result.WARNING,
            "not installed: run, plan and compare need it. pip install 'tfparallel[local]'",
        )
    else:
        yield checkup.Check("TensorFlow", checkup.Result.OK, "installed")
    free = shutil.disk_usage(".").free
    text = f"{free / 2**30:.0f} GiB free"
    if free < _FREE_BYTES:
        text = f"{text}: local runs keep checkpoints below runs/. Free some"
        yield checkup.Check("disk", checkup.Result.WARNING, text)
    else:
        yield checkup.Check("disk", checkup.Result.OK, text)
