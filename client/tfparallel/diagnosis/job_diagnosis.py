"""Reads the facts about a job, and returns its diagnosis."""

import contextlib

from tfparallel import backend, errors, log_lines, models, replica_logs
from tfparallel.diagnosis import findings, rules
from tfparallel_operator import wall_clock

_LINES = 6
"""Number of lines of a log that are evidence."""
_READ_LINES = 3 * _LINES
"""Number of lines that are read, because some of them are TensorFlow's first ones."""


async def diagnose_job(jobs: backend.Backend, name: str) -> findings.Diagnosis:
    """Return the diagnosis of a job.

    Raises:
        JobNotFound: no job has the name.
    """
    return await diagnose(jobs, await jobs.get_job(name))


async def diagnose(jobs: backend.Backend, job: models.Job) -> findings.Diagnosis:
    """Return the diagnosis of a job."""
    replicas = list(await jobs.list_replicas(job))
    facts = findings.JobSnapshot(
        job=job,
        replicas=replicas,
        events=await jobs.list_events(job),
        claims=await jobs.list_claims(job),
        last_lines=await _read_last_lines(jobs, job, replicas),
        operators=None if job.is_finished else await jobs.list_operators(),
        now=wall_clock.utc_now(),
    )
    return rules.diagnose(facts)


async def _read_last_lines(
    jobs: backend.Backend, job: models.Job, replicas: list[models.Replica]
) -> list[str]:
    lines: list[str] = []
    # A pod may be gone by now, or its node may not answer: the rest is known all the same.
    with contextlib.suppress(errors.Failure):
        witnesses = replica_logs.list_witnesses(job, replicas)
        async for line in replica_logs.read_first(jobs, job, witnesses, _READ_LINES):
            if line.text.strip() and not log_lines.is_start_of_tensorflow(line.text):
                lines.append(f"{line.replica}: {line.bare_text}")  # noqa: PERF401
    return lines[-_LINES:]
