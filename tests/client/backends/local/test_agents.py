"""A gang on this machine whose trainer is killed: agents stay, and the result is the same."""

import asyncio
import os
import pathlib
import shutil
import signal
from typing import Any

import pytest

from testing import paths, waiting
from testing.operator import local_jobs as jobs
from testing.trainer import weights
from tfparallel.backends.local import local_run
from tfparallel.job_source import source
from tfparallel_operator.api import names

pytestmark = pytest.mark.timeout(400)

MODEL = paths.ROOT / "testing/trainer/models/slow_stream.py"
STEPS = 60


def _job(mark: str, **spec: Any) -> dict[str, Any]:
    variables = [{"name": jobs.MARK, "value": mark}]
    worker = {"spec": {"containers": [{"name": "tensorflow", "env": variables}]}}
    trainer = {
        "source": {"configMap": {"name": "code"}},
        "steps": STEPS,
        "globalBatchSize": 18,
        "verify": "Off",
        "checkpoint": {"claim": "c", "everySteps": 7},
    }
    return jobs.job({"Worker": {"replicas": 2, "template": worker}}, trainer=trainer, **spec)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last checkpoint of the job, without a loss."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(MODEL, folder / "model.py")
    outcome, recorder = asyncio.run(jobs.finish(folder, _job(jobs.new_mark())))
    assert outcome.job.status.state is names.State.SUCCEEDED, recorder.lines
    return weights.checkpoint(folder / "out/claims/c/job")


@pytest.mark.parametrize(("depth", "stay"), [(2, 4), (1, 2)], ids=["trainer", "agent"])
async def test_a_killed_process_costs_no_other_result(
    tmp_path: pathlib.Path, undisturbed: dict[str, Any], depth: int, stay: int
) -> None:
    shutil.copy(MODEL, tmp_path / "model.py")
    mark = jobs.new_mark()
    recorder = jobs.RecordingWatcher()
    job_source = source.read(jobs.write(tmp_path, _job(mark)))
    running = asyncio.create_task(local_run.run(job_source, tmp_path / "out", recorder))

    def has_stepped(attempt: int) -> bool:
        assert not running.done(), recorder.lines[-20:]
        resumed = [line for line in recorder.lines_of("worker-0") if "resuming after" in line]
        return len(resumed) == attempt - 1 and bool(
            recorder.reports and recorder.reports[-1].step >= 10
        )

    await waiting.until_in_loop(lambda: has_stepped(1), "some steps", 200)
    before = {replica: jobs.chain(mark, replica) for replica in (0, 1)}
    assert [len(chain) for chain in before.values()] == [3, 3]
    os.kill(before[1][depth], signal.SIGKILL)
    await waiting.until_in_loop(lambda: has_stepped(2), "the restart", 200)
    after = {pid for replica in (0, 1) for pid in jobs.chain(mark, replica)}
    outcome = await running
    status = outcome.job.status
    assert status.state is names.State.SUCCEEDED, recorder.lines[-20:]
    assert (status.attempt, status.restarts.failure, status.restarts.disruption) == (2, 1, 0)
    supervisors_and_agents = {pid for chain in before.values() for pid in chain[:2]}
    assert len(supervisors_and_agents & after) == stay
    assert jobs.processes(mark) == []
    weights.assert_same_bits(weights.checkpoint(tmp_path / "out/claims/c/job"), undisturbed)


async def test_agents_end_with_their_job(tmp_path: pathlib.Path) -> None:
    """A failure for which the job has no restart left leaves agents, which end with the job."""
    (tmp_path / "model.py").write_text(f"{jobs.MODULE}import os\nos._exit(75)\n")
    mark = jobs.new_mark()
    outcome, _ = await jobs.finish(tmp_path, _job(mark, runPolicy={"backoffLimit": 1}))
    assert outcome.job.status.state is names.State.FAILED
    assert outcome.job.status.attempt == 2
    assert jobs.processes(mark) == []
