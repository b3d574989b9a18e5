"""A split model whose process is killed: it resumes, and ends as if the model were whole."""

import asyncio
import json
import os
import pathlib
import shutil
import signal
from typing import Any

import pytest

from testing import paths, waiting
from testing.e2e import exported
from testing.operator import local_jobs as jobs
from tfparallel.backends.local import local_run
from tfparallel.job_source import source
from tfparallel_operator.api import names
from tfparallel_trainer.contract import environment, outputs

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

MODEL = paths.POD_MODELS / "split.py"
EPOCHS = 4
STEPS_BEFORE_THE_LOSS = 24


def _job(mark: str, workers: int, devices: int, **spec: Any) -> dict[str, Any]:
    environment_variables = {environment.CPU_DEVICES: str(devices), jobs.MARK: mark}
    variables = [{"name": name, "value": value} for name, value in environment_variables.items()]
    template = {"spec": {"containers": [{"name": "tensorflow", "env": variables}]}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "split"},
        "spec": {
            "trainer": {
                "source": {"configMap": {"name": "split"}},
                "epochs": EPOCHS,
                "globalBatchSize": 64,
                "checkpoint": {"claim": "split", "everySteps": 10},
            },
            "tfReplicaSpecs": {"Worker": {"replicas": workers, "template": template}},
            **spec,
        },
    }


def _hurry(folder: pathlib.Path) -> pathlib.Path:
    """The folder of the results, from whose file on epochs begin without a wait."""
    results = folder / "out/claims/split/split"
    results.mkdir(parents=True, exist_ok=True)
    (results / "hurry").touch()
    return results


async def test_a_killed_process_costs_no_more_than_a_restart(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / name for name in ("whole", "split")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(MODEL, folder / "model.py")
    whole, split = folders
    expected = _hurry(whole)
    outcome, _ = await jobs.finish(whole, _job(jobs.new_mark(), 1, 1, strategy="Mirrored"))
    assert outcome.job.status.state is names.State.SUCCEEDED

    mark = jobs.new_mark()
    mesh = {"data": 2, "stage": -1, "microbatches": 2}
    document = _job(mark, 2, 2, strategy="ModelSplit", mesh=mesh)
    recorder = jobs.RecordingWatcher()
    job_source = source.read(jobs.write(split, document))
    running = asyncio.create_task(local_run.run(job_source, split / "out", recorder))

    def moved() -> bool:
        assert not running.done(), recorder.lines[-20:]
        return bool(recorder.reports and recorder.reports[-1].step >= STEPS_BEFORE_THE_LOSS)

    await waiting.until_in_loop(moved, "some steps", 300)
    first, *_ = jobs.processes(mark)
    os.kill(first, signal.SIGKILL)
    output = _hurry(split)
    outcome = await running
    status = outcome.job.status
    assert status.state is names.State.SUCCEEDED, recorder.lines[-20:]
    assert status.attempt == 2
    assert (status.restarts.failure, status.restarts.disruption) == (1, 0)
    resumed = [line for line in recorder.lines_of("worker-0") if "resuming after step" in line]
    assert len(resumed) == 1
    assert int(resumed[0].partition("step ")[2].split()[0]) >= STEPS_BEFORE_THE_LOSS - 10
    assert status.placement is not None
    assert [stage.device_count for stage in status.placement.stages] == [2, 2]

    accuracies = [exported.accuracy(folder / outputs.MODEL, MODEL) for folder in (expected, output)]
    assert accuracies[1] == accuracies[0]
    assert accuracies[0] > 0.9
    metrics = json.loads((output / outputs.SUMMARY).read_text())["metrics"]
    assert accuracies[1] == pytest.approx(float(metrics["val_accuracy"]), abs=1e-3)
