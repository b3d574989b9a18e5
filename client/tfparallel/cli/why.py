"""`tfparallel why`."""

import json
from collections.abc import Iterator

import click

from tfparallel import backend
from tfparallel.backends.cluster import access
from tfparallel.cli import options
from tfparallel.diagnosis import findings, job_diagnosis
from tfparallel.terminal import wrapping

_WIDTH = 80


@click.command("why")
@options.job_or_folder
@click.option(
    "-o",
    "--output",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the output.",
)
@options.cluster
def command(name: str, *, output_format: str, choice: access.ConnectionOptions) -> None:
    """Say why a job waits, is slow, restarts or failed, and what to do.

    FOLDER is that of a local run, such as runs/JOB.

    Exit status: 0 whatever the job's state is, 1 the cluster refuses or does not answer, 2 no such
    job.
    """

    async def act(jobs: backend.Backend) -> None:
        job = await jobs.get_job(name)
        diagnosis = await job_diagnosis.diagnose(jobs, job)
        if output_format == "json":
            click.echo(json.dumps(to_object(job.name, job.namespace, diagnosis), indent=2))
            return
        for line in render(diagnosis):
            wrapping.echo(line)

    options.on_job_or_folder(name, choice, act)


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
    measured = diagnosis.goodput
    return {
        "job": name,
        "namespace": namespace,
        "kind": diagnosis.kind,
        "sentence": diagnosis.sentence,
        "remedy": diagnosis.remedy,
        "documentation": diagnosis.page,
        "evidence": [{"source": fact.source, "text": fact.text} for fact in diagnosis.evidence],
        "goodput": None
        if measured is None
        else {"age": measured.age, "share": measured.share, "seconds": dict(measured.seconds)},
    }
