"""`tfparallel status` on a real API server."""

import asyncio
import json
import os
import subprocess
from typing import Any

import yaml

from testing import invocation
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import resources

STATUS: dict[str, Any] = {
    "state": "Running",
    "strategy": "ModelSplit",
    "attempt": 2,
    "restarts": {"failure": 0, "disruption": 1},
    "restartCauses": {"Disruption": 1},
    "nodeLosses": {"gpu-7": 2, "gpu-8": 1},
    "conditions": [
        {
            "type": kind,
            "status": truth,
            "reason": "ReplicasRunning",
            "message": "2/2 replicas run or have completed",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for kind, truth in (("Running", "True"), ("Restarting", "False"))
    ],
    "replicas": {
        "Worker": {
            "desired": 2,
            "running": 2,
            "lastExit": {"replica": "digits-worker-1", "code": 75, "reason": "peer lost"},
        }
    },
    "goodput": {"since": "2026-01-01T00:00:30Z", "seconds": {"scheduling": 9, "training": 21}},
    "progress": {"step": 7, "totalSteps": 10, "percent": 70, "metrics": {"loss": "0.5"}},
    "verification": {
        "checks": 3,
        "step": 4,
        "compared": [{"quantity": "gradients", "difference": "3e-15", "limit": "1e-10"}],
    },
    "placement": {
        "mesh": {"data": 1, "stage": 2, "spatial": 1, "tensor": 1, "microbatches": 4},
        "stages": [
            {
                "stage": stage,
                "devices": [f"worker-{stage}/GPU:0"],
                "deviceCount": 1,
                "layers": "conv to dense",
                "layerCount": 3,
                "parameterBytes": 2**20,
                "busySeconds": "0.25",
            }
            for stage in (0, 1)
        ],
    },
}


def _status(namespace: Namespace, *arguments: str, file: str = "") -> tuple[int, str, str]:
    """Exit status and what is shown."""
    command = _command(namespace, *arguments, file=file)
    environment = {**os.environ}  # without COLUMNS, which readline sets behind Python's back
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def _command(namespace: Namespace, *arguments: str, file: str = "") -> list[str]:
    where = ["--kubeconfig", file or str(namespace.cluster.kubeconfig)]
    where += [] if "-A" in arguments else ["--namespace", namespace.name]
    return [*invocation.PROGRAM, "status", *arguments, *where]


async def test_a_job_is_shown_with_its_replicas_and_placement(namespace: Namespace) -> None:
    await namespace.create_job()
    code, shown, _ = _status(namespace, "digits")
    assert (code, shown.splitlines()[0]) == (0, "digits: not seen by the operator yet")
    path = resources.JOBS.path(namespace.name, "digits", "status")
    await namespace.api.patch(path, {"status": STATUS})
    code, shown, complaint = _status(namespace, "digits")
    assert (code, complaint.partition(". ")[0]) == (
        0,
        f"note: no operator acts on jobs in {namespace.name!r}: it is not installed in this"
        " cluster",
    )
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.splitlines()]
    for line in (
        "digits: Running",
        "strategy ModelSplit",
        "attempt 2 (after 0 failures, 1 disruptions)",
        "restarts 1 Disruption",
        "node losses gpu-7 2 (avoided), gpu-8 1",
        "progress step 7/10 (70%) loss 0.5",
        "goodput 70%: training 21s, scheduling 9s",
        "verified Step 4 (3 checks) equals one process: gradients 3e-15 (limit 1e-10)",
        "running ReplicasRunning: 2/2 replicas run or have completed",
        "Worker 2 0 2 0 0 digits-worker-1 exited 75 peer lost",
        "mesh stage 2, 4 microbatches (1F1B)",
        "1 worker-1/GPU:0 conv to dense (3) 1 MiB 0.25 50%",
    ):
        assert line in lines, shown
    assert "restarting" not in shown


async def test_what_cannot_be_shown_is_reported(namespace: Namespace) -> None:
    code, _, complaint = _status(namespace, "nobody")
    assert code == 2
    assert f"there is no job 'nobody' in namespace '{namespace.name}'" in complaint
    code, _, complaint = _status(namespace, "digits", file="no-such-file")
    assert code == 1
    assert "no-such-file" in complaint


async def test_every_output_is_that_of_kubectl(namespace: Namespace) -> None:
    await namespace.create_job()
    name = "tfparalleljob.tfparallel.dev/digits\n"
    assert _status(namespace, "digits", "-o", "name") == (0, name, "")
    for parse, output in ((json.loads, "json"), (yaml.safe_load, "yaml")):
        _, shown, _ = _status(namespace, "digits", "-o", output)
        assert parse(shown)["metadata"]["name"] == "digits"
        _, shown, _ = _status(namespace, "-o", output)
        assert [job["metadata"]["name"] for job in parse(shown)["items"]] == ["digits"]
    _, shown, _ = _status(namespace, "-A", "-o", "wide")
    head, *rows = shown.splitlines()
    assert (head.split()[:2], head.split()[-1]) == (["NAMESPACE", "NAME"], "MESSAGE")
    assert [namespace.name, "digits"] in [row.split()[:2] for row in rows]


async def test_a_watch_prints_a_line_at_each_change_until_the_job_ends(
    namespace: Namespace,
) -> None:
    await namespace.create_job()
    path = resources.JOBS.path(namespace.name, "digits", "status")
    watch = await asyncio.create_subprocess_exec(
        *_command(namespace, "digits", "-w"), stdout=asyncio.subprocess.PIPE
    )
    assert watch.stdout is not None
    assert (await watch.stdout.readline()).decode().startswith("digits  ")
    await namespace.api.patch(path, {"status": STATUS})
    line = (await watch.stdout.readline()).decode()
    assert line == "digits  Running    step 7/10 (70%)  loss 0.5\n"
    await namespace.api.patch(path, {"status": {"attempt": 3}})  # changes nothing of the line
    [running, _] = STATUS["conditions"]
    ended = {**running, "type": "Succeeded", "reason": "ChiefSucceeded"}
    succeeded = {**STATUS, "state": "Succeeded", "conditions": [ended]}
    await namespace.api.patch(path, {"status": succeeded})
    line = (await watch.stdout.readline()).decode()
    assert line.startswith("digits  Succeeded")
    assert await watch.stdout.read() == b""
    assert await watch.wait() == 0
