"""`tfparallel why`."""

import json
from collections.abc import Iterator

import click

from tfparallel.cli import options
from tfparallel.cluster import access, backend
from tfparallel.diagnosis import findings, gather
from tfparallel.terminal import wrapping

_WIDTH = 80


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
            wrapping.echo(line)

    options.on_cluster(choice, act)


def render(diagnosis: findings.Diagnosis) -> Iterator[str]:
    """Yield a diagnosis as lines of at most 80 characters."""
    yield from wrapping.wrap(f"{diagnosis.sentence.rstrip('.')}.", _WIDTH)
    if diagnosis.remedy:
        yield ""
        yield from wrapping.wrap(f"What to do: {diagnosis.remedy}", _WIDTH)
    if diagnosis.page:
        yield f"See {diagnosis.page}"
    if diagnosis.evidence:
        yield ""
        yield "Evidence:"
        for fact in diagnosis.evidence:
            yield from wrapping.wrap(f"  {fact.source:<9}  {fact.text}", _WIDTH, indent=13)


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
