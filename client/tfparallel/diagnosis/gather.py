"""What a place knows of a job, and the diagnosis of it."""

import contextlib

from tfparallel import backend, errors, log_lines, models
from tfparallel.diagnosis import findings, rules
from tfparallel_operator import wall_clock

_LINES = 6
"""Of a log, as evidence."""
_READ_LINES = 3 * _LINES
"""Some of them are TensorFlow's first ones."""


async def diagnose_job(place: backend.Backend, name: str) -> findings.Diagnosis:
    """Say why a job is as it is.

    Raises:
        JobNotFound: no job has the name.
    """
    job = await place.get_job(name)
    replicas = list(await place.list_replicas(job))
    facts = findings.Facts(
        job=job,
        replicas=replicas,
        events=await place.list_events(job),
        claims=await place.list_claims(job),
        last_lines=await _read_last_lines(place, job, replicas),
        operators=await place.list_operators() if job.status.state is None else None,
        now=wall_clock.utc_now(),
    )
    return rules.diagnose(facts)


async def _read_last_lines(
    place: backend.Backend, job: models.Job, replicas: list[models.Replica]
) -> list[str]:
    witness = rules.find_witness(job, replicas)
    if witness is None:
        return []
    lines: list[str] = []
    # A pod may be gone by now, or its node may not answer: the rest is known all the same.
    with contextlib.suppress(errors.Failure):
        async for line in place.read_logs(witness, job, follow=False, tail=_READ_LINES):
            if line.strip() and not log_lines.is_start_of_tensorflow(line):
                lines.append(line.removeprefix(f"[{witness.name}] "))  # noqa: PERF401
    return [f"{witness.name}: {line}" for line in lines[-_LINES:]]
