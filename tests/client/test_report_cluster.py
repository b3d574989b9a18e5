"""`tfparallel report` on a real API server, of jobs of which little is left."""

import pathlib
import subprocess
import sys
from typing import Any

from testing import invocation, pictures
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

ENDED = "2100-01-01T00:00:00Z"
"""After the job was created, whenever the test runs."""


def succeeded() -> dict[str, str]:
    return {
        "type": names.ConditionType.SUCCEEDED,
        "status": "True",
        "reason": "WorkersSucceeded",
        "message": "all workers ended with success",
        "lastTransitionTime": ENDED,
    }


async def create(namespace: Namespace, status: dict[str, Any]) -> None:
    """A job with this status, and nothing else: neither pods nor Events nor its claim."""
    trainer = {
        "source": {"configMap": {"name": "digits"}},
        "globalBatchSize": 32,
        "epochs": 1,
        "checkpoint": {"claim": "gone"},
    }
    job = objects.job()
    job["spec"] = {"trainer": trainer, "tfReplicaSpecs": {"Worker": {"replicas": 2}}}
    await create_with(namespace, job, status)


async def create_with(namespace: Namespace, job: dict[str, Any], status: dict[str, Any]) -> None:
    await namespace.create_job(job)
    path = resources.JOBS.path(namespace.name, "digits", "status")
    await namespace.api.patch(path, {"status": status})


def report(namespace: Namespace, folder: pathlib.Path, *options: str) -> str:
    """What the page of the job says."""
    file = folder / "digits.html"
    where = invocation.where(namespace)
    command = (
        sys.executable,
        "-m",
        "tfparallel",
        "report",
        "digits",
        "-o",
        str(file),
        *options,
        *where,
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done.stderr
    return pictures.words(file.read_text(encoding="utf-8"))


async def test_a_status_of_an_older_operator_makes_a_page_of_what_there_is(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    """Its operator wrote conditions alone: neither state nor attempt nor times."""
    await create(namespace, {"conditions": [succeeded()]})
    text = report(namespace, tmp_path)
    assert "digits Succeeded What ran" in text
    assert "replicas Worker 2" in text
    assert "globalBatchSize: 32" in text
    assert "claim 'gone' of job 'digits' does not exist" in text
    assert "When pods started and ended is not on record." in text
    assert "Goodput" not in text


async def test_a_job_whose_pods_events_and_claim_are_gone_says_so(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    status = {
        "state": "Succeeded",
        "strategy": "MultiWorkerMirrored",
        "attempt": 2,
        "completionTime": ENDED,
        "restarts": {"failure": 0, "disruption": 1},
        "restartCauses": {"Disruption": 1},
        "progress": {"step": 40, "metrics": {"loss": "0.25"}},
        "conditions": [succeeded()],
        "goodput": {"since": ENDED, "seconds": {"training": 30, "restarting": 10}},
    }
    await create(namespace, status)
    text = report(namespace, tmp_path)
    assert "restarts 1 (Disruption 1)" in text
    assert "The records of training cannot be read: claim 'gone' of job 'digits' does not" in text
    assert "Last report: loss 0.25." in text
    assert "The job's Events are gone: by default, a cluster drops them after an hour." in text
    assert "When pods started and ended is not on record." in text
    assert "Goodput 75%: training 30s, restarting 10s" in text
    assert "75.0 %, 30.0s" in text
    assert "not on record" in text


async def test_the_claim_of_a_script_is_read_as_well(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    """Here it is gone, too; tests/e2e/test_own_scripts.py has one with records."""
    job = objects.job()
    volume = {"name": "kept", "persistentVolumeClaim": {"claimName": "gone"}}
    mount = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    for role in job["spec"]["tfReplicaSpecs"].values():
        role["template"]["spec"]["volumes"] = [volume]
        role["template"]["spec"]["containers"][0].update(mount)
    await create_with(namespace, job, {"state": "Succeeded", "conditions": [succeeded()]})
    cannot = "The records of training cannot be read: "
    assert f"{cannot}claim 'gone' of job 'digits' does not" in report(namespace, tmp_path)
    text = report(namespace, tmp_path, "--path", "/other")
    assert f"{cannot}job 'digits' keeps nothing in /other: its containers mount" in text


async def test_a_job_that_does_not_exist_ends_with_a_sentence(namespace: Namespace) -> None:
    where = invocation.where(namespace)
    done = invocation.run("report", "digits", *where)
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert "there is no job 'digits'" in " ".join(done.stderr.split())
