"""Jobs whose replicas are processes of this machine."""

import asyncio
import pathlib
import shutil
import time
from collections.abc import Sequence

from testing.operator import local_jobs
from testing.random_kills import campaign_run, kills
from tfparallel.backends.local import local_run
from tfparallel.job_source import source


def run(
    folder: pathlib.Path, strategy: str, drawn: Sequence[kills.Kill]
) -> campaign_run.CampaignRun:
    """Run a job to its end, in a new folder."""
    folder.mkdir()
    shutil.copy(campaign_run.MODEL, folder / "model.py")
    killer = kills.Killer(drawn)
    spec = campaign_run.spec(strategy, source="code", claim="c")
    job_source = source.read(
        local_jobs.write(folder, local_jobs.job(spec.pop("tfReplicaSpecs"), **spec))
    )
    begun = time.monotonic()
    outcome = asyncio.run(
        local_run.run(
            job_source, folder / "out", local_jobs.RecordingWatcher(), companion=killer.run
        )
    )
    if outcome.stopped_by is not None:
        raise SystemExit(f"stopped by {outcome.stopped_by.name}")
    if outcome.trained is None:
        raise ValueError("a job of the shipped trainer has a folder of results")
    seconds = time.monotonic() - begun
    return campaign_run.judge(strategy, outcome.job.status, killer, outcome.trained, seconds)
