"""`tfparallel version`."""

import importlib.metadata

import click


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(f"tfparallel {importlib.metadata.version('tfparallel')}")
