"""`tfparallel why`."""

import json
import re
import textwrap
from collections.abc import Iterator

import click

from tfparallel.cli import options
from tfparallel.cluster import access, backend
from tfparallel.diagnosis import findings, gather

_WIDTH = 80
_GLUE = "\0"
"""Stands for a space where a line must not break."""


@click.command("why")
@options.job_name
@click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What is printed.",
)
@options.cluster
def command(name: str, *, output_format: str, choice: access.Choice) -> None:
    """Say why a job waits, is slow, restarts or failed, and what to do.

    Exit status: 0 whatever the job's state is, 1 the cluster refuses or does not answer, 2 no such
    job.
    """

    async def act(cluster: backend.ClusterBackend) -> None:
        diagnosis = await gather.diagnose_job(cluster, name)
        if output_format == "json":
            click.echo(json.dumps(to_object(name, cluster.namespace, diagnosis), indent=2))
            return
        for line in render(diagnosis):
            click.echo(line)

    options.on_cluster(choice, act)


def render(diagnosis: findings.Diagnosis) -> Iterator[str]:
    """Yield a diagnosis as lines of at most 80 characters."""
    yield from _wrap(f"{diagnosis.sentence.rstrip('.')}.")
    if diagnosis.remedy:
        yield ""
        yield from _wrap(f"What to do: {diagnosis.remedy}")
    if diagnosis.page:
        yield f"See {diagnosis.page}"
    if diagnosis.evidence:
        yield ""
        yield "Evidence:"
        for fact in diagnosis.evidence:
            yield from _wrap(f"  {fact.source:<9}  {fact.text}", indent=13)


def _wrap(text: str, indent: int = 0) -> list[str]:
    """Break text into lines, but never a command, so that you can copy it."""
    glued = re.sub(r"`[^`]+`", lambda command: command[0].replace(" ", _GLUE), text)
    lines = textwrap.wrap(
        glued,
        _WIDTH,
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


def to_object(name: str, namespace: str, diagnosis: findings.Diagnosis) -> dict[str, object]:
    """Return a diagnosis for JSON."""
    return {
        "job": name,
        "namespace": namespace,
        "kind": diagnosis.kind,
        "sentence": diagnosis.sentence,
        "remedy": diagnosis.remedy,
        "documentation": diagnosis.page,
        "evidence": [{"source": fact.source, "text": fact.text} for fact in diagnosis.evidence],
    }
