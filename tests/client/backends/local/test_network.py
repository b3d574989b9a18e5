"""Who can reach the processes of a run on this machine."""

import pathlib
import socket
import sys

import pytest

from testing.operator import local_jobs as jobs
from tfparallel.backends.local import ports
from tfparallel.cli import run as command
from tfparallel_operator.api import load

_LISTENS = """
import os
from tfparallel_trainer.comms import cluster
from tfparallel_trainer import tasks
own = tasks.parse(os.environ["TF_CONFIG"]).task
with cluster.listen(own) as listener:
    print(listener.getsockname()[0], os.environ["TFPARALLEL_JOB_KEY"])
"""


@pytest.mark.usefixtures("processes")
async def test_processes_meet_on_loopback_by_a_key_that_no_file_holds(
    tmp_path: pathlib.Path,
) -> None:
    roles = {role: [sys.executable, "-c", _LISTENS] for role in ("Chief", "Worker")}
    keys = set()
    for output in ("first", "second"):
        _, recorder = await jobs.finish(tmp_path, jobs.job(roles), output=output)
        [(chief_address, key)] = [line.split() for line in recorder.lines_of("chief-0")]
        assert chief_address == ports.HOST
        assert recorder.lines_of("worker-0") in ([], [f"{ports.HOST} {key}"])
        assert len(key) == 32
        keys.add(key)
    assert len(keys) == 2
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "logs"]
    assert files
    assert not [file for file in files for key in keys if key.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("processes", "has_route", "is_told"), [(2, True, True), (2, False, False), (1, True, False)]
)
def test_the_first_run_of_a_job_says_that_others_reach_its_servers(
    processes: int,
    has_route: bool,
    is_told: bool,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "has_route", lambda: has_route)
    worker = {"template": jobs.template(["true"]), "replicas": processes}
    job = load.parse_manifest(jobs.job({"Worker": worker}))
    folder = tmp_path / "job/20260101-000000"
    notes = list(command._note_on_network(job, folder))
    assert len(notes) == is_told
    folder.mkdir(parents=True)
    assert not list(command._note_on_network(job, folder))


def test_a_machine_that_cannot_send_to_others_has_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.HOST, 0)) as reachable:
        monkeypatch.setattr(ports, "_ELSEWHERE", reachable.getsockname())
        assert ports.has_route()
    monkeypatch.setattr(ports, "_ELSEWHERE", ("255.255.255.255", 9))  # needs a right to broadcast
    assert not ports.has_route()
