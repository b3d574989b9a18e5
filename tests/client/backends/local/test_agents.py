"""A gang on this machine whose trainer is killed: agents stay, and the result is the same.

The state that agents have in memory is newer than the newest checkpoint.
"""

import asyncio
import functools
import itertools
import os
import pathlib
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest

from testing import paths, waiting
from testing.operator import local_jobs as jobs
from testing.trainer import weights
from tfparallel.backends.local import local_run
from tfparallel.job_source import source as local_source
from tfparallel_operator.api import names
from tfparallel_trainer.contract import environment

pytestmark = pytest.mark.timeout(400)

MODEL = paths.ROOT / "testing/trainer/models/slow_stream.py"
STEPS = 60

LAYOUTS: dict[str, dict[str, Any]] = {
    "Mirrored": {"replicas": 1, "strategy": "Mirrored"},
    "MultiWorkerMirrored": {"replicas": 2},
    "ModelSplit": {"replicas": 2, "strategy": "ModelSplit", "mesh": {"stage": 2}},
}

HOOK = """
import json, os, signal
from tfparallel_trainer.checkpoint import memory_file, shard
from tfparallel_trainer.loop import state_copier

state_copier.SHARE = 1.0  # copies follow each other at once
task = json.loads(os.environ["TF_CONFIG"])["task"]
is_killed = os.environ["TFPARALLEL_ATTEMPT"] == "1" and task["index"] == INDEX
begin, seal = memory_file.MemoryCopy.__init__, memory_file.MemoryCopy.seal
read_into, wait = shard.read_into, state_copier.StateCopier.wait
begun = variables = 0

def kill_at(moment):
    if is_killed and begun == 6 and moment == "MOMENT":
        os.kill(os.getpid(), signal.SIGKILL)

def count_copy(self, *arguments):
    global begun, variables
    begun, variables = begun + 1, 0
    begin(self, *arguments)

def count_variable(*arguments):
    global variables
    variables += 1
    if variables == 3:
        kill_at("copying")
    read_into(*arguments)

def tell(self):
    kill_at("before it is complete")
    seal(self)
    print(f"the copy of step {self._description.index.position.step} is complete", flush=True)

def wait_and_end(self):
    wait(self)  # until the copies of all processes are complete
    kill_at("complete")

memory_file.MemoryCopy.__init__, memory_file.MemoryCopy.seal = count_copy, tell
shard.read_into, state_copier.StateCopier.wait = count_variable, wait_and_end
"""
"""Kills a trainer at a moment of its sixth copy."""

EXCHANGE_HOOK = """
import json, os, signal
from tfparallel_trainer.checkpoint import memory_file, partners
from tfparallel_trainer.loop import state_copier

state_copier.SHARE = 1.0  # copies follow each other at once
task = json.loads(os.environ["TF_CONFIG"])["task"]
is_killed = os.environ["TFPARALLEL_ATTEMPT"] == "1" and task["index"] == INDEX
seal, exchange = memory_file.MemoryCopy.seal, partners.Partnership.exchange
wait = state_copier.StateCopier.wait
step = begun = kept = 0

def note_step(self):
    global step
    step = self._description.index.position.step
    seal(self)

def exchange_or_end(self, file):
    global begun
    begun += 1
    if is_killed and begun == 3 and "MOMENT" == "transfer":
        for channel in filter(None, (self._outgoing, self._incoming)):
            channel._function = end
    exchange(self, file)

def wait_and_end(self):
    global kept
    wait(self)  # until all processes have what they exchanged
    if kept < begun:
        kept = begun
        print(f"the copy of step {step} is kept", flush=True)
        if is_killed and kept == 3:
            end()

def end(*_):
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

memory_file.MemoryCopy.seal, partners.Partnership.exchange = note_step, exchange_or_end
state_copier.StateCopier.wait = wait_and_end
"""
"""Kills a trainer and its agent during the third exchange with its partner, or after it."""


def _job(mark: str, replicas: int = 2, steps_between: int = 7, **spec: Any) -> dict[str, Any]:
    variables = [{"name": jobs.MARK, "value": mark}]
    worker = {"spec": {"containers": [{"name": "tensorflow", "env": variables}]}}
    trainer = {
        "source": {"configMap": {"name": "code"}},
        "steps": STEPS,
        "globalBatchSize": 18,
        "verify": "Off",
        "checkpoint": {"claim": "c", "everySteps": steps_between},
    }
    return jobs.job({"Worker": {"replicas": replicas, "template": worker}}, trainer=trainer, **spec)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Gives the last checkpoint of a layout's job, without a loss."""

    @functools.cache
    def finish(layout: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("undisturbed")
        shutil.copy(MODEL, folder / "model.py")
        job = _job(jobs.new_mark(), **LAYOUTS[layout])
        outcome, recorder = asyncio.run(jobs.finish(folder, job))
        assert outcome.job.status.state is names.State.SUCCEEDED, recorder.lines
        return weights.checkpoint(folder / "out/claims/c/job")

    return finish


@pytest.fixture
def expected(layout: str, undisturbed: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """The last checkpoint of the layout of a test, without a loss."""
    return undisturbed(layout)


@pytest.mark.parametrize(
    ("layout", "replica", "depth", "stay", "source"),
    [
        pytest.param("MultiWorkerMirrored", 1, 2, 4, "memory", id="trainer"),
        pytest.param("MultiWorkerMirrored", 1, 1, 2, "memory", id="agent"),
        pytest.param("MultiWorkerMirrored", 0, 1, 2, "disk", id="chief's agent"),
        pytest.param("ModelSplit", 1, 1, 2, "disk", id="agent of a stage"),
    ],
)
async def test_a_killed_process_costs_no_other_result(
    tmp_path: pathlib.Path,
    expected: dict[str, Any],
    layout: str,
    replica: int,
    depth: int,
    stay: int,
    source: str,
) -> None:
    shutil.copy(MODEL, tmp_path / "model.py")
    mark = jobs.new_mark()
    recorder = jobs.RecordingWatcher()
    job_source = local_source.read(jobs.write(tmp_path, _job(mark, **LAYOUTS[layout])))
    running = asyncio.create_task(local_run.run(job_source, tmp_path / "out", recorder))

    def has_stepped(attempt: int) -> bool:
        assert not running.done(), recorder.lines[-20:]
        return len(_resumptions(recorder)) == attempt - 1 and bool(
            recorder.reports and recorder.reports[-1].step >= 10
        )

    await waiting.until_in_loop(lambda: has_stepped(1), "some steps", 200)
    before = {replica: jobs.chain(mark, replica) for replica in (0, 1)}
    assert [len(chain) for chain in before.values()] == [3, 3]
    os.kill(before[replica][depth], signal.SIGKILL)
    await waiting.until_in_loop(lambda: has_stepped(2), "the restart", 200)
    after = {pid for replica in (0, 1) for pid in jobs.chain(mark, replica)}
    outcome = await running
    status = outcome.job.status
    assert status.state is names.State.SUCCEEDED, recorder.lines[-20:]
    assert (status.attempt, status.restarts.failure, status.restarts.disruption) == (2, 1, 0)
    supervisors_and_agents = {pid for chain in before.values() for pid in chain[:2]}
    assert len(supervisors_and_agents & after) == stay
    assert jobs.processes(mark) == []
    (resumption,) = _resumptions(recorder)
    assert resumption.endswith("from memory") == (source == "memory"), resumption
    weights.assert_same_bits(weights.checkpoint(tmp_path / "out/claims/c/job"), expected)


@pytest.mark.parametrize("moment", ["copying", "before it is complete", "complete"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_newest_complete_copy_is_taken(
    tmp_path: pathlib.Path,
    expected: dict[str, Any],
    layout: str,
    moment: str,
) -> None:
    """A trainer is killed in a copy, or before the next one, by itself, so at that very moment.

    No checkpoint holds a copy, so there are always two.
    """
    index = 1 if layout == "ModelSplit" else 0
    hook = HOOK.replace("MOMENT", moment).replace("INDEX", str(index))
    (tmp_path / "model.py").write_text(MODEL.read_text() + hook)
    job = _job(jobs.new_mark(), steps_between=STEPS, **LAYOUTS[layout])
    outcome, recorder = await jobs.finish(tmp_path, job)
    status = outcome.job.status
    assert status.state is names.State.SUCCEEDED, recorder.lines[-20:]
    assert (status.attempt, status.restarts.failure) == (2, 1)
    (resumption,) = _resumptions(recorder)
    *_, step = complete = _copied_steps(recorder, index, "is complete")
    assert len(complete) == (6 if moment == "complete" else 5)
    assert resumption.endswith(f"resuming after step {step} from memory")
    weights.assert_same_bits(weights.checkpoint(tmp_path / "out/claims/c/job"), expected)


@pytest.mark.parametrize("moment", ["transfer", "after it"])
@pytest.mark.parametrize(("layout", "index"), [("MultiWorkerMirrored", 0), ("ModelSplit", 1)])
async def test_a_partner_has_the_state_of_a_process_that_is_lost_with_its_agent(
    tmp_path: pathlib.Path, expected: dict[str, Any], layout: str, index: int, moment: str
) -> None:
    """No checkpoint is there, so without the partner the job would begin at step 0."""
    hook = EXCHANGE_HOOK.replace("MOMENT", moment).replace("INDEX", str(index))
    (tmp_path / "model.py").write_text(MODEL.read_text() + hook)
    job = _job(jobs.new_mark(), steps_between=STEPS, **LAYOUTS[layout])
    outcome, recorder = await jobs.finish(tmp_path, job)
    status = outcome.job.status
    assert status.state is names.State.SUCCEEDED, recorder.lines[-20:]
    assert (status.attempt, status.restarts.failure) == (2, 1)
    (resumption,) = _resumptions(recorder)
    *_, step = kept = _copied_steps(recorder, index, "is kept")
    assert len(kept) == (2 if moment == "transfer" else 3)
    partner = f"worker-{1 - index} kept the copy of worker-{index}"
    assert resumption.endswith(f"resuming after step {step} from memory ({partner})")
    weights.assert_same_bits(weights.checkpoint(tmp_path / "out/claims/c/job"), expected)


async def test_agents_end_with_their_job(tmp_path: pathlib.Path) -> None:
    """A failure for which the job has no restart left leaves agents, which end with the job."""
    (tmp_path / "model.py").write_text(f"{jobs.MODULE}import os\nos._exit(75)\n")
    mark = jobs.new_mark()
    outcome, _ = await jobs.finish(tmp_path, _job(mark, runPolicy={"backoffLimit": 1}))
    assert outcome.job.status.state is names.State.FAILED
    assert outcome.job.status.attempt == 2
    assert jobs.processes(mark) == []


@pytest.mark.parametrize("reason", ["another program starts it", "its address is empty"])
async def test_a_trainer_without_an_agent(reason: str, tmp_path: pathlib.Path) -> None:
    shows = "import os\nprint('agent:', 'TFPARALLEL_AGENT_URL' in os.environ)\nos._exit(1)\n"
    (tmp_path / "model.py").write_text(f"{jobs.MODULE}{shows}")
    job = _job(jobs.new_mark(), replicas=1)
    wrappers: dict[str, tuple[str, ...]] = {}
    if reason == "its address is empty":
        [container] = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        container["env"].append({"name": environment.AGENT_URL, "value": ""})
    else:
        wrappers["worker-0"] = ("env", "PYTHONUNBUFFERED=1")
    job_source = local_source.read(jobs.write(tmp_path, job))
    recorder = jobs.RecordingWatcher()
    await local_run.run(job_source, tmp_path / "out", recorder, wrappers=wrappers)
    assert "agent: False" in recorder.lines_of("worker-0")


def _resumptions(recorder: jobs.RecordingWatcher) -> list[str]:
    """The lines in which the first worker says where it resumes."""
    return [line for line in recorder.lines_of("worker-0") if "resuming after" in line]


def _copied_steps(recorder: jobs.RecordingWatcher, index: int, sentence: str) -> list[str]:
    """The steps of the copies of which a worker logs this sentence in its first attempt."""
    lines = recorder.lines_of(f"worker-{index}")
    first_attempt = itertools.takewhile(lambda line: "resuming after" not in line, lines)
    return [line.partition("of step ")[2].split()[0] for line in first_attempt if sentence in line]
