import asyncio
import datetime
import json
import pathlib
import resource
import signal
from typing import Any

import aiohttp
import pytest

from testing import waiting
from testing.operator import local_jobs as jobs
from tfparallel.backends.local import local_run
from tfparallel.job_source import source
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import decision
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import environment

pytestmark = pytest.mark.usefixtures("processes")


def _failure(outcome: local_run.RunResult) -> str:
    failed = conditions.find(outcome.job.status, names.ConditionType.FAILED)
    assert failed is not None
    return f"{failed.reason}: {failed.message}"


async def test_a_job_whose_chief_ends_well_has_succeeded(tmp_path: pathlib.Path) -> None:
    document = jobs.job({"Chief": jobs.shell("echo done"), "Worker": jobs.shell("sleep 60")})
    outcome, recorder = await jobs.finish(tmp_path, document)
    assert outcome.job.status.state is names.State.SUCCEEDED
    assert recorder.lines_of("chief-0") == ["done"]
    assert (tmp_path / "out/logs/job-chief-0.log").read_text() == "done\n"
    assert [event.reason for event in recorder.events] == [
        names.Reason.JOB_STARTED,
        names.Reason.REPLICAS_RUNNING,
        names.Reason.CHIEF_SUCCEEDED,
    ]


@pytest.mark.parametrize("spec", [{}, {"network": "Open", "hostNetwork": True}])
async def test_every_role_gets_another_address_on_loopback(
    tmp_path: pathlib.Path, spec: dict[str, Any]
) -> None:
    show = f'echo "$TF_CONFIG"; {jobs.meet(6)}'
    two = {"replicas": 2, "template": jobs.template(jobs.shell(f"{show}; sleep 60"))}
    first = jobs.shell(show)
    roles = {"Chief": first, "Worker": two, "PS": two, "Evaluator": first}
    document = jobs.job(roles, **spec)
    _, recorder = await jobs.finish(tmp_path, document)
    address = {placed.replica: placed.address for placed in recorder.placements}
    assert len(set(address.values())) == 6
    assert all(address_of_role.startswith("127.0.0.1:") for address_of_role in address.values())
    training = {
        "chief": [address["chief-0"]],
        "worker": [address["worker-0"], address["worker-1"]],
        "ps": [address["ps-0"], address["ps-1"]],
    }
    [config] = map(json.loads, recorder.lines_of("ps-1"))
    assert config == {"cluster": training, "task": {"type": "ps", "index": 1}}
    [config] = map(json.loads, recorder.lines_of("evaluator-0"))
    assert config["cluster"] == {**training, "evaluator": [address["evaluator-0"]]}


async def test_what_a_replica_says_of_its_end_is_reported(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(jobs.MODULE)
    command = jobs.shell('echo "a weight is lost." > $TFPARALLEL_FAILURE_FILE; exit 66')
    outcome, _ = await jobs.finish(tmp_path, jobs.job({"Worker": command}, trainer={"epochs": 1}))
    assert _failure(outcome) == (
        "ReplicaFailed: job-worker-0 exited with code 66 (the loss, a gradient or a weight became "
        "NaN or infinite): a weight is lost"
    )
    assert not pathlib.Path("/dev/termination-log").exists()


async def test_a_failure_runs_the_gang_again_at_the_same_addresses(tmp_path: pathlib.Path) -> None:
    meet, again = jobs.meet(2, "met-$TFPARALLEL_ATTEMPT"), "test $TFPARALLEL_ATTEMPT -gt 1"
    worker = f'echo "$TFPARALLEL_ATTEMPT $TF_CONFIG"; {meet}; {again} || exit 1; sleep 60'
    chief = f"echo $TFPARALLEL_ATTEMPT; {meet}; {again} || sleep 60"
    document = jobs.job({"Chief": jobs.shell(chief), "Worker": jobs.shell(worker)})
    outcome, recorder = await jobs.finish(tmp_path, document)
    assert outcome.job.status.state is names.State.SUCCEEDED
    assert outcome.job.status.restarts.failure == 1
    assert recorder.lines_of("chief-0") == ["1", "2"]
    first, second = (line.split(" ", 1) for line in recorder.lines_of("worker-0"))
    assert (first[0], second[0]) == ("1", "2")
    assert first[1] == second[1]


async def test_a_job_without_a_limit_does_not_repeat_a_mistake_for_ever(
    tmp_path: pathlib.Path,
) -> None:
    worker = {"restartPolicy": "OnFailure", "template": jobs.template(jobs.shell("echo; exit 1"))}
    document = jobs.job({"Worker": worker}, runPolicy={"backoffLimit": 2147483647})
    outcome, recorder = await jobs.finish(tmp_path, document)
    assert "all 10 restarts of runPolicy.backoffLimit are used" in _failure(outcome)
    assert len(recorder.lines_of("worker-0")) == source.RESTARTS + 1
    assert "(failure 1 of 10 that lead to a restart)" in "".join(
        event.message for event in recorder.events
    )


async def test_a_command_that_does_not_exist_fails_the_job(tmp_path: pathlib.Path) -> None:
    document = jobs.job({"Worker": ["no-such-command"]}, runPolicy={"backoffLimit": 0})
    outcome, recorder = await jobs.finish(tmp_path, document)
    assert "exited with code 127" in _failure(outcome)
    assert recorder.lines_of("worker-0") == [
        "cannot run 'no-such-command': No such file or directory"
    ]


async def test_what_the_system_cannot_start_fails_the_job(tmp_path: pathlib.Path) -> None:
    template = jobs.template(["true"], env=[{"name": "BIG", "value": "x" * 200_000}])
    document = jobs.job({"Worker": {"template": template}}, runPolicy={"backoffLimit": 0})
    outcome, _ = await jobs.finish(tmp_path, document)
    assert "job-worker-0 ended: StartError [Errno 7] Argument list too long" in _failure(outcome)


async def test_the_deadline_fires_without_any_event(tmp_path: pathlib.Path) -> None:
    document = jobs.job({"Worker": jobs.shell("sleep 60")}, runPolicy={"activeDeadlineSeconds": 1})
    outcome, _ = await jobs.finish(tmp_path, document)
    assert _failure(outcome).startswith("DeadlineExceeded: did not end within 1 s of its start")


async def test_the_clock_of_the_caller_is_the_only_one(tmp_path: pathlib.Path) -> None:
    moment = datetime.datetime(2031, 5, 4, 3, 2, 1, 900_000, tzinfo=datetime.UTC)
    job_source = source.read(jobs.write(tmp_path, jobs.job({"Worker": ["true"]})))
    outcome = await local_run.run(
        job_source, tmp_path / "out", jobs.RecordingWatcher(), lambda: moment
    )
    status = outcome.job.status
    assert status.start_time == status.completion_time == moment.replace(microsecond=0)


async def test_nothing_outlives_the_job_whatever_its_clean_up_policy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = jobs.new_mark()
    monkeypatch.setenv(jobs.MARK, mark)
    document = jobs.job(
        {"Chief": ["true"], "Worker": jobs.shell("sleep 60 & wait")},
        runPolicy={"cleanPodPolicy": "None"},
    )
    outcome, _ = await jobs.finish(tmp_path, document)
    assert outcome.job.status.state is names.State.SUCCEEDED
    assert jobs.processes(mark) == []


async def test_a_folder_of_an_earlier_run_is_resumed_under_a_new_attempt(
    tmp_path: pathlib.Path,
) -> None:
    template = jobs.template(
        jobs.shell("echo $TFPARALLEL_ATTEMPT; cat /state/was || true; echo here > /state/was"),
        volumeMounts=[{"name": "state", "mountPath": "/state"}],
        pod_spec={"volumes": [{"name": "state", "persistentVolumeClaim": {"claimName": "c"}}]},
    )
    document = jobs.job({"Worker": {"template": template}})
    _, first = await jobs.finish(tmp_path, document)
    outcome, second = await jobs.finish(tmp_path, document)
    assert first.lines_of("worker-0")[0] == "1"
    assert second.lines_of("worker-0") == ["2", "here"]
    assert outcome.job.status.restarts.failure == 0
    assert (tmp_path / "out/claims/c/was").read_text() == "here\n"


async def test_a_run_that_continues_counts_its_time_from_the_first_start(
    tmp_path: pathlib.Path,
) -> None:
    now = datetime.datetime(2031, 5, 4, 3, 2, 1, tzinfo=datetime.UTC)

    class StoppingWatcher(jobs.RecordingWatcher):
        """Stops the run after a minute of training."""

        def event(self, event: decision.JobEvent) -> None:
            nonlocal now
            if event.reason == names.Reason.REPLICAS_RUNNING:
                now += datetime.timedelta(minutes=1)
                signal.raise_signal(signal.SIGTERM)

    command = jobs.shell(f"[ -e {tmp_path}/stopped ] || sleep 600")
    job_source = source.read(jobs.write(tmp_path, jobs.job({"Worker": command})))
    output = tmp_path / "out"
    stopped = await local_run.run(job_source, output, StoppingWatcher(), lambda: now)
    spent = {"training": 60}
    expected = job_status.GoodputStatus(phase=names.Activity.SUSPENDED, since=now, seconds=spent)
    assert stopped.job.status.goodput == expected
    (tmp_path / "stopped").touch()
    now += datetime.timedelta(hours=1)
    ended = await local_run.run(job_source, output, jobs.RecordingWatcher(), lambda: now)
    spent = {"training": 60, "suspended": 3600}
    assert ended.job.status.goodput == job_status.GoodputStatus(since=now, seconds=spent)


@pytest.mark.parametrize("content", ["", "[]", "{}"])
async def test_a_folder_with_something_else_in_it_is_refused(
    tmp_path: pathlib.Path, content: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/status.json").write_text(content)
    with pytest.raises(load.SpecError, match="not the status of a run; give --output another"):
        await jobs.finish(tmp_path, jobs.job({"Worker": ["true"]}))


async def test_two_runs_never_share_a_folder(tmp_path: pathlib.Path) -> None:
    document = jobs.job({"Worker": jobs.shell("touch up; while [ ! -e go ]; do sleep 0.05; done")})
    first = asyncio.create_task(jobs.finish(tmp_path, document))
    await waiting.until_in_loop((tmp_path / "up").exists, "the first run")
    with pytest.raises(load.SpecError, match="another run uses this folder"):
        await jobs.finish(tmp_path, document)
    (tmp_path / "go").touch()
    outcome, _ = await first
    assert outcome.job.status.state is names.State.SUCCEEDED


_MOUNTS = [
    {"name": "code", "mountPath": "/code"},
    {"name": "own", "mountPath": "/own"},
    {"name": "one", "mountPath": "/one"},
    {"name": "data", "mountPath": "/data", "subPath": "deep/er"},
    {"name": "scratch", "mountPath": "/scratch"},
]
_VOLUMES = [
    {"name": "code", "configMap": {"name": "not-in-the-file"}},
    {"name": "own", "configMap": {"name": "in-the-file"}},
    {"name": "one", "configMap": {"name": "in-the-file", "items": [{"key": "a", "path": "x/y"}]}},
    {"name": "data", "persistentVolumeClaim": {"claimName": "claim"}},
    {"name": "scratch", "emptyDir": {}},
]


async def test_mounts_are_folders_of_this_machine(tmp_path: pathlib.Path) -> None:
    line = (
        "cat /code/beside $OWN/a /own/b /one/x/y; ls /scratch; pwd; echo z > /data/z; >/scratch/s"
    )
    template = jobs.template(
        jobs.shell(line),
        env=[{"name": "OWN", "value": "/own"}],
        workingDir="/scratch/inner",
        volumeMounts=_MOUNTS,
        pod_spec={"volumes": _VOLUMES},
    )
    config_map = {
        "kind": "ConfigMap",
        "metadata": {"name": "in-the-file"},
        "data": {"a": "A\n", "b": "B\n"},
    }
    (tmp_path / "beside").write_text("beside\n")
    document = jobs.job({"Worker": {"template": template}})
    for _ in range(2):  # the second run finds the scratch folder empty again
        outcome, recorder = await jobs.finish(tmp_path, document, config_map)
        assert outcome.job.status.state is names.State.SUCCEEDED
        inner = tmp_path / "out/pods/job-worker-0/scratch/inner"
        assert recorder.lines_of("worker-0") == ["beside", "A", "B", "A", "inner", str(inner)]
    assert (tmp_path / "out/claims/claim/deep/er/z").read_text() == "z\n"


async def test_a_custom_command_starts_next_to_the_jobs_file(tmp_path: pathlib.Path) -> None:
    template = jobs.template(["pwd"], workingDir="/only/in/the/image")
    outcome, recorder = await jobs.finish(tmp_path, jobs.job({"Worker": {"template": template}}))
    assert recorder.lines_of("worker-0") == [str(tmp_path)]
    assert outcome.trained is None


_SHOWN = (
    "OMP_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "PYTHONUNBUFFERED",
    "no_proxy",
    environment.CPU_DEVICES,
    environment.PROGRESS_SECONDS,
    environment.FULL_DISK_IS_FINAL,
    "TFPARALLEL_LEFT_OVER",
)


async def test_processes_share_the_machine_and_inherit_no_other_job(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFPARALLEL_LEFT_OVER", "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("no_proxy", "example.org")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    line = "; ".join(f'echo "{name}=${name}"' for name in _SHOWN)
    chief = {"devices": 2, "template": jobs.template(jobs.shell(line))}
    _, recorder = await jobs.finish(tmp_path, jobs.job({"Chief": chief}))
    values: dict[str, Any] = dict(text.split("=", 1) for text in recorder.lines_of("chief-0"))
    assert values["OMP_NUM_THREADS"] == "7"
    assert int(values["TF_NUM_INTRAOP_THREADS"]) >= 1
    assert values["PYTHONUNBUFFERED"] == "1"
    assert values["no_proxy"] == "example.org,127.0.0.1"
    assert values[environment.CPU_DEVICES] == "2"
    assert float(values[environment.PROGRESS_SECONDS]) <= 0.1, "a bar would lag its lines"
    assert values[environment.FULL_DISK_IS_FINAL] == "1", "no retry makes room"
    assert values["TFPARALLEL_LEFT_OVER"] == ""


async def test_a_process_that_aborts_under_a_limit_is_said_to_need_more(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 * 2**30, 3 * 2**30))
    template = jobs.template(jobs.shell("kill -ABRT $$$$"))
    document = jobs.job({"Worker": {"template": template}}, runPolicy={"backoffLimit": 0})
    outcome, _ = await jobs.finish(tmp_path, document)
    assert "exited with code 134 (ended by signal 6): ulimit -v gives each process 3.0 GiB" in (
        _failure(outcome)
    )


_REPORT = {"step": 5, "totalSteps": 10, "metrics": {"loss": "0.5"}}
_STAGES = [
    {
        "stage": stage,
        "devices": [f"worker-{stage}/CPU:0"],
        "deviceCount": 1,
        "layers": "conv to dense",
        "layerCount": 3,
        "parameterBytes": 1024,
    }
    for stage in (0, 1)
]
_PLACEMENT = {"mesh": {"stage": 2}, "stages": _STAGES}


async def test_the_coordinator_reports_with_its_token(tmp_path: pathlib.Path) -> None:
    show = "echo $TFPARALLEL_PROGRESS_URL; cat $TFPARALLEL_PROGRESS_TOKEN_FILE; echo"
    chief = jobs.shell(f"{show}; while [ ! -e go ]; do sleep 0.05; done")
    worker = jobs.shell("echo none$TFPARALLEL_PROGRESS_URL; sleep 60")
    document = jobs.job({"Chief": chief, "Worker": worker})
    recorder = jobs.RecordingWatcher()
    job_source = source.read(jobs.write(tmp_path, document))
    running = asyncio.create_task(local_run.run(job_source, tmp_path / "out", recorder))
    await waiting.until_in_loop(lambda: len(recorder.lines) >= 3, "what both replicas print")
    url, token = recorder.lines_of("chief-0")
    assert recorder.lines_of("worker-0") == ["none"]
    right = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session:
        for headers, body, answer in (
            ({}, _REPORT, 401),
            ({"Authorization": "Bearer x"}, _REPORT, 401),
            (right, {"step": -1}, 400),
            (right, {"step": 1, "colour": "red"}, 400),
            (right, {"step": 1, "metrics": {"x": "0" * 40_000}}, 413),
            (right, {"step": 1, "placement": {"mesh": {"stage": 0}}}, 400),
            (right, _REPORT | {"placement": _PLACEMENT}, 204),
            (right, _REPORT | {"step": 6, "placement": _PLACEMENT}, 204),
        ):
            async with session.post(url, json=body, headers=headers) as response:
                assert response.status == answer
    (tmp_path / "go").touch()
    outcome = await running
    assert [report.step for report in recorder.reports] == [5, 6]
    assert [split.mesh.stage for split in recorder.splits] == [2]  # told once
    assert outcome.job.status.placement is not None
    assert outcome.job.status.placement.stages[1].devices == ("worker-1/CPU:0",)
    assert outcome.job.status.progress is not None
    assert outcome.job.status.progress.metrics == {"loss": "0.5"}
    assert outcome.job.status.state is names.State.SUCCEEDED


@pytest.mark.parametrize(
    ("pod_spec", "grace"), [({}, "10"), ({"terminationGracePeriodSeconds": 600}, "600")]
)
async def test_a_process_knows_when_it_is_killed(
    tmp_path: pathlib.Path, pod_spec: dict[str, Any], grace: str
) -> None:
    show = jobs.template(jobs.shell(f"echo ${environment.GRACE_SECONDS}"), pod_spec=pod_spec)
    _, recorder = await jobs.finish(tmp_path, jobs.job({"Chief": {"template": show}}))
    assert recorder.lines_of("chief-0") == [grace]


async def test_the_shipped_trainer_finds_its_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(jobs.MODULE)
    names_shown = (environment.JOB_FILE, environment.SOURCE_DIR, environment.OUTPUT_DIR)
    show = " ".join(f"${name}" for name in names_shown)
    chief = jobs.shell(f"pwd; for file in {show}; do echo $file; done; cat ${names_shown[0]}")
    document = jobs.job(
        {"Chief": chief},
        name="digits",
        trainer={
            "source": {"configMap": {"name": "digits"}},
            "epochs": 2,
            "checkpoint": {"claim": "kept"},
        },
    )
    outcome, recorder = await jobs.finish(tmp_path, document)
    where, job_file, source_dir, output_dir, *content = recorder.lines_of("chief-0")
    assert where == source_dir == str(tmp_path)
    assert pathlib.Path(job_file).is_relative_to(tmp_path / "out")
    assert json.loads("".join(content))["trainer"]["epochs"] == 2
    assert output_dir == str(outcome.trained) == str(tmp_path / "out/claims/kept/digits")
