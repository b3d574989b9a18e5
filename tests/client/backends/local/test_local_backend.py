"""The client's jobs on this machine: real processes, which outlive the client."""

import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import tfparallel
from testing import waiting
from testing.operator import local_jobs as jobs
from tfparallel.backends.local import detached, folders, locks

pytestmark = pytest.mark.usefixtures("processes")

PATIENT = "echo up; sleep 600 & wait"


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Marks the processes of a test; none may be left by it."""
    mark = jobs.new_mark()
    monkeypatch.setenv(jobs.MARK, mark)
    yield mark
    left = jobs.processes(mark)
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []


@pytest.fixture
def client(tmp_path: pathlib.Path, mark: str) -> Iterator[tfparallel.TrainerClient]:
    """A client of this machine; its jobs end with the test."""
    with tfparallel.TrainerClient(tfparallel.Local(tmp_path / "runs")) as client:
        yield client
        for job in client.list_jobs():
            client.delete_job(job.name)


def elastic(command: str, name: str = "job") -> dict[str, Any]:
    worker = {"replicas": 1, "maxReplicas": 3, "template": jobs.template(jobs.shell(command))}
    return jobs.job({"Worker": worker}, name=name)


def folder_of(tmp_path: pathlib.Path, name: str = "job") -> pathlib.Path:
    [folder] = (tmp_path / "runs" / name).iterdir()
    return folder


def test_a_job_trains_and_everything_about_it_can_be_read(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    meet = jobs.meet(2)
    roles = {
        "Chief": jobs.shell(f"echo up; {meet}; echo done"),
        "Worker": jobs.shell(f"echo w; {meet}"),
    }
    created = client.train(jobs.job(roles), folder=tmp_path)
    assert (created.name, created.state) == ("job", "Pending")
    assert list(client.get_job_logs("job", follow=True)) == ["up", "done"]
    assert list(client.get_job_logs("job", tail=1)) == ["done"]
    assert list(client.get_job_logs("job", tail=0)) == []
    states: list[str] = []
    ended = client.wait_for_job_status("job", callbacks=[lambda job: states.append(job.state)])
    assert (ended.uid, ended.state, states[-1]) == (created.uid, "Succeeded", "Succeeded")
    assert set(client.get_job_logs("job", "all")) == {
        "[chief-0] up",
        "[chief-0] done",
        "[worker-0] w",
    }
    events = client.get_job_events("job")
    assert [event.reason for event in events][0::2] == ["JobStarted", "ChiefSucceeded"]
    assert {event.object for event in events} == {"tfparalleljob/job"}
    chief, worker = client.list_replicas("job")
    assert (chief.name, chief.phase, chief.exit_code) == ("chief-0", "Succeeded", 0)
    assert (worker.pod, worker.attempt) == ("job-worker-0", 1)
    assert folder_of(tmp_path).joinpath("logs/job-chief-0.log").is_file()


def test_a_failed_job_says_why(client: tfparallel.TrainerClient) -> None:
    client.train(jobs.job({"Worker": jobs.shell("exit 4")}, runPolicy={"backoffLimit": 0}))
    with pytest.raises(tfparallel.Failure, match="job-worker-0 exited with code 4"):
        client.wait_for_job_status("job")
    diagnosis = client.diagnose_job("job")
    assert diagnosis.kind == "Failed"
    assert "ago: job-worker-0 exited with code 4" in diagnosis.sentence
    with pytest.raises(tfparallel.SpecError, match="job 'job' has failed: train it again"):
        client.resume_job("job")
    client.train(jobs.job({"Worker": ["true"]}))
    assert client.wait_for_job_status("job").state == "Succeeded"


def test_suspend_resume_and_scale(client: tfparallel.TrainerClient) -> None:
    client.train(elastic(PATIENT))
    client.wait_for_job_status("job", "Running")
    with pytest.raises(tfparallel.Failure, match="'job' runs already"):
        client.train(elastic(PATIENT))
    client.suspend_job("job")
    assert client.get_job("job").state == "Suspended"
    assert [replica.phase for replica in client.list_replicas("job")] == ["Failed"]
    client.scale_job("job", 2)
    assert client.get_job("job").state == "Suspended"
    client.resume_job("job")
    client.resume_job("job")  # it runs by now, which is no error
    running = client.wait_for_job_status("job", "Running")
    assert (running.status.attempt, running.status.ready) == (2, "2/2")
    client.scale_job("job", 3)
    running = client.wait_for_job_status("job", "Running")
    assert (running.status.attempt, running.status.ready) == (3, "3/3")
    with pytest.raises(tfparallel.SpecError, match="not between its minReplicas and maxReplicas"):
        client.scale_job("job", 4)


def test_workers_of_a_job_without_bounds_stay(client: tfparallel.TrainerClient) -> None:
    client.train(jobs.job({"Worker": jobs.shell(PATIENT)}))
    with pytest.raises(tfparallel.SpecError, match=r"Worker\.maxReplicas is not set, and"):
        client.scale_job("job", 2)


def write_size(text: str, results: pathlib.Path) -> None:
    from layers import blocks  # type: ignore[import-not-found]

    with open(results / "model.keras", "a") as file:
        file.write(f"{text} {blocks.SIZE}\n")


def test_a_function_is_a_job_whose_model_comes_back(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    (folder / "layers").mkdir(parents=True)
    (folder / "layers/blocks.py").write_text("SIZE = 3\n")
    created = client.train(
        func=write_size, func_args={"text": "it's"}, folder=folder, workers=2, packages=["none"]
    )
    assert created.name == "write-size"
    (folder / "layers/blocks.py").unlink()  # the job has a copy
    client.wait_for_job_status("write-size")
    model = client.get_model("write-size")
    assert model == pathlib.Path("write-size-model/model.keras")
    assert {*model.read_text().splitlines()} == {"it's 3"}  # of one worker, or both
    with pytest.raises(tfparallel.SpecError, match=r"the models of job 'write-size' are model\.k"):
        client.get_model("write-size", file="other.keras")


def write_two(results: pathlib.Path) -> None:
    (results / "best").mkdir()
    (results / "best/model.keras").write_text("best")
    (results / "last.keras").write_text("last")


def test_one_of_several_models_is_chosen(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    client.train(write_two)
    client.wait_for_job_status("write-two")
    with pytest.raises(tfparallel.SpecError, match=r"several models: best/model\.keras, last\."):
        client.get_model("write-two", to=tmp_path / "to")
    assert not (tmp_path / "to").exists()
    model = client.get_model("write-two", to=tmp_path / "to", file="last.keras")
    assert model.read_text() == "last"
    assert model == tmp_path / "to/last.keras"
    best = client.get_model("write-two", to=tmp_path / "best", path="/results/best")
    assert best == tmp_path / "best/model.keras"


def fail_once(results: pathlib.Path) -> None:
    import time

    marker = results / "started"
    if not marker.exists():
        marker.touch()
        time.sleep(600)
    (results / "model.keras").write_text("resumed")


def test_a_function_that_was_suspended_runs_again(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    client.train(fail_once)
    waiting.until(lambda: list(tmp_path.rglob("started")), "the call of the function")
    client.suspend_job("fail-once")
    client.resume_job("fail-once")
    client.wait_for_job_status("fail-once")
    assert client.get_model("fail-once", to=tmp_path / "to").read_text() == "resumed"


def test_a_job_that_keeps_nothing_has_no_model(client: tfparallel.TrainerClient) -> None:
    client.train(jobs.job({"Worker": ["true"]}))
    client.wait_for_job_status("job")
    with pytest.raises(tfparallel.Failure, match="keeps nothing: its containers mount no claim"):
        client.get_model("job")


CHILD = """
import os, sys, tfparallel
client = tfparallel.TrainerClient(tfparallel.Local("runs"))
client.train("job.yaml")
os.kill(os.getpid(), 9)
"""


def test_a_job_outlives_its_client_and_another_one_finds_and_deletes_it(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path, mark: str
) -> None:
    jobs.write(tmp_path, elastic(PATIENT))
    done = subprocess.run([sys.executable, "-c", CHILD], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    client.wait_for_job_status("job", "Running")
    assert next(iter(client.get_job_logs("job", follow=True))) == "up"
    client.delete_job("job")
    assert jobs.processes(mark) == []
    assert client.list_jobs() == []
    assert folder_of(tmp_path).joinpath("logs/job-worker-0.log").read_text() == "up\n"
    with pytest.raises(tfparallel.JobNotFound):
        client.delete_job("job")


def test_the_log_of_a_replica_that_ended_with_the_job_is_still_read(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    meet = jobs.meet(2, str(tmp_path / "met"))
    roles = {"Chief": jobs.shell(meet), "Worker": jobs.shell(f"echo up; {meet}; sleep 600 & wait")}
    client.train(jobs.job(roles))
    client.wait_for_job_status("job")
    waiting.until(lambda: client.list_replicas("job")[1].reason, "the end of the worker")
    assert list(client.get_job_logs("job", "worker-0")) == ["up"]


def test_results_are_deleted_on_request(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    client.train(jobs.job({"Worker": ["true"]}))
    client.wait_for_job_status("job")
    client.delete_job("job", delete_results=True)
    assert list((tmp_path / "runs/job").iterdir()) == []


def test_a_job_whose_process_was_killed_has_failed_and_resumes(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    client.train(elastic(PATIENT))
    client.wait_for_job_status("job", "Running")
    layout = folders.Folders(folder_of(tmp_path))
    os.kill(int(layout.lock.read_text()), signal.SIGKILL)
    with pytest.raises(tfparallel.Failure, match="ProcessEnded: the job's process has ended"):
        client.wait_for_job_status("job")
    client.resume_job("job")
    resumed = client.wait_for_job_status("job", "Running")
    assert resumed.status.attempt == 2
    spent = resumed.status.goodput
    assert spent is not None
    age = spent.since - resumed.created.replace(microsecond=0)
    assert sum(spent.seconds.values()) == age.total_seconds()


def test_what_the_run_refuses_stands_in_the_status(client: tfparallel.TrainerClient) -> None:
    """The client checks the job alone; the run translates pods into processes."""
    mounts = [{"name": "disk", "mountPath": "/disk"}]
    volumes = [{"name": "disk", "nfs": {"server": "x", "path": "/"}}]
    template = jobs.template(["true"], volumeMounts=mounts, pod_spec={"volumes": volumes})
    client.train(jobs.job({"Worker": {"template": template}}))
    with pytest.raises(tfparallel.Failure, match="needs a cluster"):
        client.wait_for_job_status("job")


def test_wrong_jobs_leave_nothing(client: tfparallel.TrainerClient, tmp_path: pathlib.Path) -> None:
    document = jobs.job({"Worker": {"replicas": 1}}, trainer={"epochs": 1})
    with pytest.raises(tfparallel.SpecError, match="no such file in the job's folder"):
        client.train(document, folder=tmp_path)
    assert client.list_jobs() == []
    assert not (tmp_path / "runs").exists()


def test_names_have_near_ones_and_no_path_is_one(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    client.train(jobs.job({"Worker": ["true"]}, name="digits"))
    with pytest.raises(tfparallel.JobNotFound, match=r"no job 'digit' below .*: did you mean 'dig"):
        client.get_job("digit")
    for name in ("", "..", "../runs/digits", "digits/"):
        with pytest.raises(tfparallel.JobNotFound):
            client.delete_job(name)


async def test_a_watch_ends_with_the_job(tmp_path: pathlib.Path, mark: str) -> None:
    async with tfparallel.Local(tmp_path).connect() as backend:
        await backend.create_job(elastic(PATIENT), tmp_path)
        states = []
        async for job in backend.watch_job("job"):
            states.append(job.state)
            if job.state == "Running":
                await backend.delete_job("job")
        assert states[0] == "Pending"
        assert states[-1] == "Running"


def test_a_process_that_starts_is_stopped_too(tmp_path: pathlib.Path, mark: str) -> None:
    """It has not taken its run's lock yet, and so has no id that could be wrong."""
    with tfparallel.TrainerClient(tfparallel.Local(tmp_path)) as client:
        client.train(elastic(PATIENT))
        client.delete_job("job")
    assert jobs.processes(mark) == []


def test_a_second_start_of_one_run_is_none(
    client: tfparallel.TrainerClient, tmp_path: pathlib.Path
) -> None:
    client.train(elastic(PATIENT))
    run = detached.DetachedRun(folders.Folders(folder_of(tmp_path)))
    assert not run.start()
    waiting.until(lambda: locks.is_locked(run.layout.lock), "the run's own lock")
    assert not run.start()
