"""A worker that is slowed while a job runs on this machine: the job names it until it keeps up."""

import asyncio
import contextlib
import datetime
import os
import pathlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from testing import waiting
from testing.operator import local_jobs as jobs
from tfparallel.backends.local import cluster, local_run
from tfparallel.job_source import source
from tfparallel_operator.core.life import slowness

pytestmark = pytest.mark.usefixtures("processes")

MODULE = """
import keras
import numpy as np

from tfparallel_trainer.reporting import stragglers

stragglers.WINDOW_SECONDS = 5.0  # a user waits for longer


def build_model():
    return keras.Sequential([keras.Input((256,)), keras.layers.Dense(256), keras.layers.Dense(1)])


def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-5), "mse")


def training_data():
    return np.ones((4096, 256), "float32"), np.ones((4096, 1), "float32")
"""


@contextlib.asynccontextmanager
async def slowed(process_id: int) -> AsyncIterator[None]:
    """Let a process run for a twentieth of the time while the body runs."""

    async def slow() -> None:
        while True:
            os.kill(process_id, signal.SIGSTOP)
            await asyncio.sleep(0.38)
            os.kill(process_id, signal.SIGCONT)
            await asyncio.sleep(0.02)

    task = asyncio.create_task(slow())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    os.kill(process_id, signal.SIGCONT)


@pytest.mark.parametrize(
    ("strategy", "roles"),
    [
        ("ParameterServer", {"Worker": {"replicas": 2}, "PS": {"replicas": 1}}),
        ("MultiWorkerMirrored", {"Worker": {"replicas": 2}}),
    ],
)
def test_a_worker_that_stays_slow_is_named_until_it_keeps_up(
    tmp_path: pathlib.Path, strategy: str, roles: dict[str, Any]
) -> None:
    (tmp_path / "model.py").write_text(MODULE)
    trainer = {
        "source": {"configMap": {"name": "code"}},
        "steps": 10**6,
        "globalBatchSize": 64,
        "verify": "Off",
    }
    document = jobs.job(roles, strategy=strategy, trainer=trainer)
    recorder = jobs.RecordingWatcher()
    causes = []

    async def slow_one(local: cluster.LocalCluster, _: pathlib.Path | None) -> None:
        async def report(straggler: str | None) -> None:
            """Wait until the job reports a straggler, or none."""
            await waiting.until_async(
                lambda: asyncio.sleep(0, recorder.reports),
                f"{straggler} as the straggler",
                limit=240,
                when=lambda reports: reports and reports[-1].straggler == straggler,
            )

        await report(None)
        async with slowed(local.trainer_ids()["worker-1"]):
            await report("worker-1")
        now = datetime.datetime.now(datetime.UTC)
        pace = slowness.Pace(local.job.status, now, must_report=True)
        causes.append(pace.find_slowness("job"))
        await report(None)
        signal.raise_signal(signal.SIGTERM)

    job_source = source.read(jobs.write(tmp_path, document))
    asyncio.run(local_run.run(job_source, tmp_path / "out", recorder, companion=slow_one))
    [slow] = causes
    assert slow is not None
    assert slow.cause == "worker-1 stays slower than the other replicas"
    messages = [text for _, text in recorder.lines if "worker-1 " in text]
    assert any("warning: worker-1 is slow: in the last " in text for text in messages)
    assert any("worker-1 keeps up with the other replicas again" in text for text in messages)
