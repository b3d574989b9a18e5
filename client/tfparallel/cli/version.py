"""`tfparallel version`."""

import asyncio
import json

import click
import yaml

from tfparallel import errors
from tfparallel.backends.cluster import access, cluster_backend, doctor_checks
from tfparallel.cli import options
from tfparallel.terminal import wrapping
from tfparallel_operator.api import load

_SECONDS = 5.0
"""How long a cluster may take to answer."""


@click.command("version")
@click.option("--client", "only_client", is_flag=True, help="Ask no cluster.")
@click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)
@options.cluster
def command(*, only_client: bool, output_format: str, choice: access.ConnectionOptions) -> None:
    """Print the version of this command, and what the cluster has installed.

    Exit status: 0 also if no cluster answers.
    """
    versions = {"tfparallel": doctor_checks.client_version()}
    if not only_client:
        versions |= asyncio.run(_ask_cluster(choice))
    if output_format == "json":
        click.echo(json.dumps(versions, indent=2))
    elif output_format == "yaml":
        click.echo(yaml.safe_dump(versions, sort_keys=False), nl=False)
    else:
        for name, text in versions.items():
            wrapping.echo(f"{name} {text}")


async def _ask_cluster(choice: access.ConnectionOptions) -> dict[str, str]:
    """Return the versions in a cluster, as the checks find them; empty: it does not answer."""
    versions: dict[str, str] = {}
    try:
        async with (
            asyncio.timeout(_SECONDS),
            cluster_backend.ClusterBackend(access.find(choice)) as cluster,
        ):
            async for check in doctor_checks.check(cluster, doctor_checks.VERSIONS):
                versions[check.name] = check.text
    except (errors.Failure, load.SpecError, TimeoutError) as error:
        versions.setdefault("cluster", str(error) or f"no answer in {_SECONDS:.0f} s")
    return versions
