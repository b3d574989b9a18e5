"""`tfparallel logs`: which replica's log is shown, on an API server that has some of them."""

import asyncio
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from testing import invocation
from testing.operator import routes, scripted_server, symptoms
from tfparallel import models, replica_logs
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_trainer.contract import exits

FAILED = {
    "type": "Failed",
    "status": "True",
    "reason": "ReplicaFailed",
    "message": "digits-worker-2 exited with code 65 (UserError)",
    "lastTransitionTime": "2026-01-01T10:03:00Z",
}

FAILURE = {"replica": "digits-worker-2", "cause": "PermanentExit", "exitCode": 65}


def pod(index: int, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod of a worker of `digits`; where it waits, its source has failed."""
    labels = {names.LABEL_ROLE: "worker", names.LABEL_INDEX: str(index), names.LABEL_ATTEMPT: "1"}
    end = state.get("terminated", {"exitCode": 73})
    status = {
        "phase": "Failed" if end["exitCode"] else "Succeeded",
        "containerStatuses": [{"name": names.CONTAINER, "state": state}],
    }
    if "waiting" in state:
        source = {"name": names.SOURCE_CONTAINER, "state": {"terminated": end}}
        status["initContainerStatuses"] = [source]
    return {
        "metadata": {
            "name": f"digits-worker-{index}",
            "labels": labels,
            "creationTimestamp": "2026-01-01T10:00:00Z",
            "ownerReferences": [{"uid": "uid-of-digits"}],
        },
        "status": status,
    }


def ended(code: int, minute: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T10:0{minute}:00Z"}}


PODS = {
    0: ended(0, 1),
    1: ended(139, 3),
    2: ended(65, 2),
    3: ended(139, 2),
    4: ended(exits.Exit.PEER_LOST, 1),
}
"""Worker 0 completed; worker 2 is the cause of the end, 3 crashed before 1, and 4 lost a peer."""
ALL = "".join(map(str, PODS))


async def call(
    folder: pathlib.Path,
    *arguments: str,
    pods: str = ALL,
    state: str = "Failed",
    left: str = ALL,
    is_old: bool = False,
) -> invocation.Result:
    """Call `tfparallel logs digits`.

    Args:
        folder: for the kubeconfig.
        arguments: further ones.
        pods: the numbers of the workers whose pods exist.
        state: of the job.
        left: the numbers of the workers whose logs can be read.
        is_old: whether the status is of an operator that writes no failure.
    """
    job = routes.job("digits", state=state)
    job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = len(PODS)
    if state == "Failed":
        job["status"] |= {"conditions": [FAILED], **({} if is_old else {"failure": FAILURE})}
    documents = {
        resources.JOBS.path("team", "digits"): job,
        resources.PODS.path("team"): scripted_server.listing(
            5, *(pod(int(index), PODS[int(index)]) for index in pods)
        ),
    }
    others = routes.answers(documents)

    async def answer(request: web.Request) -> web.StreamResponse:
        _, _, name = request.path.removesuffix("/log").rpartition("/")
        if request.path.endswith("/log") and name[-1] in left:
            where = "" if request.query["container"] == names.CONTAINER else " before it trains"
            return await scripted_server.text(f"a line of {name}{where}\n", 200)(request)
        return await others(request)

    async with scripted_server.serving() as server:
        server.script = [answer]
        where = ("--kubeconfig", str(routes.kubeconfig(folder, server.url)))
        command = ("logs", "digits", *arguments, *where)
        return await asyncio.to_thread(invocation.invoke, command)


@pytest.mark.parametrize(
    ("pods", "left", "shown"),
    [
        (ALL, ALL, "worker-2"),
        ("0134", ALL, "worker-3"),
        (ALL, "0134", "worker-3"),  # the pod of worker 2 was evicted: it has no log
        (ALL, "014", "worker-1"),
        (ALL, "04", "worker-4"),
    ],
)
async def test_of_a_failed_job_the_first_that_failed_and_has_a_log(
    pods: str, left: str, shown: str, tmp_path: pathlib.Path
) -> None:
    result = await call(tmp_path, pods=pods, left=left)
    assert (result.exit_code, result.stdout) == (0, f"a line of digits-{shown}\n")
    assert result.stderr == f"{shown} failed: this is its log\n"


async def test_of_a_source_that_failed_the_lines_of_its_init_container(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PODS, 2, {"waiting": {"reason": "PodInitializing"}})
    result = await call(tmp_path)
    assert result.stdout == "a line of digits-worker-2 before it trains\n"
    result = await call(tmp_path, "worker-1")
    assert result.stdout == "a line of digits-worker-1\n"


async def test_an_older_operator_does_not_say_which_failed_first(tmp_path: pathlib.Path) -> None:
    result = await call(tmp_path, pods="1340", is_old=True)
    assert result.stdout == "a line of digits-worker-3\n"  # the first that ended by itself


async def test_a_failed_job_without_any_log_says_so(tmp_path: pathlib.Path) -> None:
    result = await call(tmp_path, left="0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert (
        result.stderr == "error: the API server of context 'kind-dev' refused: \"log\" not found\n"
    )


@pytest.mark.parametrize("state", ["Succeeded", "Running", "Restarting"])
async def test_of_other_jobs_the_coordinator(state: str, tmp_path: pathlib.Path) -> None:
    result = await call(tmp_path, state=state)
    assert (result.stdout, result.stderr) == ("a line of digits-worker-0\n", "")


async def test_a_replica_that_you_name_and_all(tmp_path: pathlib.Path) -> None:
    result = await call(tmp_path, "worker-1")
    assert (result.stdout, result.stderr) == ("a line of digits-worker-1\n", "")
    result = await call(tmp_path, "--all")
    lines = [f"[worker-{index}] a line of digits-worker-{index}" for index in PODS]
    assert (result.stdout.splitlines(), result.stderr) == (lines, "")


def test_the_replica_that_failed_first_speaks_as_soon_as_its_container_has_ended() -> None:
    chief = models.Replica("chief-0", "digits-chief-0", 1, "Running", exit_code=65)
    worker = models.Replica("worker-0", "digits-worker-0", 1, "Failed", exit_code=65)
    assert replica_logs.list_witnesses(symptoms.failed().job, [worker, chief]) == [chief, worker]
