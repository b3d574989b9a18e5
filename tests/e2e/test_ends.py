"""How pods end on a real kubelet: what its statuses say decides, and not the exit code alone."""

from collections.abc import Callable
from typing import Any

import pytest

from testing.e2e import jobs, kubectl_namespaces

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

OBEYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(3600)
"""
FILLS = """
import time
with open("/scratch/file", "wb") as file:
    file.write(bytes(8 * 2**20))
time.sleep(3600)
"""
ASKS = """
import os, sys
sys.exit(0 if os.environ["TFPARALLEL_ATTEMPT"] == "3" else 42)
"""


def _job(
    name: str, source: str, *, backoff_limit: int = 0, **pod: Any
) -> kubectl_namespaces.Object:
    role = jobs.script(source)
    spec = role["template"]["spec"]
    spec.update(pod)
    for volume in pod.get("volumes", ()):
        mount = {"name": volume["name"], "mountPath": f"/{volume['name']}"}
        spec["containers"][0].setdefault("volumeMounts", []).append(mount)
    policy = {"backoffLimit": backoff_limit}
    return jobs.job(name, tfReplicaSpecs={"Worker": role}, runPolicy=policy)


def _message(job: kubectl_namespaces.Object) -> str:
    [failed] = [
        condition for condition in job["status"]["conditions"] if condition["type"] == "Failed"
    ]
    return str(failed["message"])


def test_a_pod_that_fills_its_volume_fails_the_job_with_the_kubelets_words(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    namespace.apply(_job("fills", FILLS, backoff_limit=1, volumes=[scratch]))
    job = namespace.wait_ended("fills")
    assert job["status"]["restarts"] == {"failure": 1, "disruption": 0}
    message = _message(job)
    assert 'Usage of EmptyDir volume "scratch" exceeds the limit "1Mi"' in message
    assert "Raise sizeLimit" in message


def test_a_pod_that_passes_its_own_deadline_has_failed(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    namespace.apply(_job("late", OBEYS, activeDeadlineSeconds=3))
    job = namespace.wait_ended("late")
    assert job["status"]["state"] == "Failed"
    assert "DeadlineExceeded" in _message(job)


def test_a_program_that_obeys_a_deletion_or_an_eviction_runs_again(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    namespace.apply(_job("obeys", OBEYS, terminationGracePeriodSeconds=30))

    def delete(pod: str) -> None:
        namespace.kubectl("delete", "pod", pod, "--wait=false")

    def runs(attempt: int) -> Callable[[kubectl_namespaces.Object], bool]:
        return lambda s: (s.get("state"), s.get("attempt")) == ("Running", attempt)

    for attempt, end in enumerate((delete, namespace.evict), start=1):
        namespace.wait("obeys", runs(attempt))
        end("obeys-worker-0")
    namespace.wait("obeys", runs(3))
    status = namespace.job("obeys")["status"]
    assert status["restarts"] == {"failure": 0, "disruption": 2}


def test_a_program_that_asks_to_run_again_succeeds(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    namespace.apply(_job("asks", ASKS))
    status = namespace.wait_ended("asks")["status"]
    assert (status["state"], status["attempt"]) == ("Succeeded", 3)
    assert status["restarts"] == {"failure": 0, "disruption": 2}
