"""Pods are lost during training: the gang starts again from its checkpoint and finishes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e import jobs, namespaces, operator, volumes

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

SLOW = Path(__file__).parent / "models/slow.py"
STEPS = 600
STEPS_BEFORE_THE_LOSS = 60


@pytest.fixture
def training(
    namespace: namespaces.Namespace,
) -> Iterator[Callable[[], namespaces.Object]]:
    """Starts a slow job with checkpoints; returns it once it has come some way."""
    volume = volumes.make(namespace, "slow")

    def start() -> namespaces.Object:
        namespace.kubectl("create", "configmap", "slow", f"--from-file=model.py={SLOW}")
        checkpoint = {"claim": "slow", "everySteps": 20}
        namespace.apply(jobs.trained("slow", steps=STEPS, globalBatchSize=8, checkpoint=checkpoint))
        return namespace.wait("slow", _has_come_some_way)

    yield start
    volume.remove()


def _has_come_some_way(status: namespaces.Object) -> bool:
    assert status.get("state") not in {"Succeeded", "Failed"}, status
    return bool(status.get("progress", {}).get("step", 0) >= STEPS_BEFORE_THE_LOSS)


def test_lost_worker_restarts_the_gang_from_its_checkpoint(
    namespace: namespaces.Namespace, training: Callable[[], namespaces.Object]
) -> None:
    before = training()
    first = namespace.pods("slow")
    namespace.kubectl("delete", "pod", "slow-worker-0", "--grace-period=0", "--force")
    restarted = namespace.wait("slow", lambda status: status.get("attempt", 0) >= 2)
    assert restarted["status"]["restarts"] == {"failure": 0, "disruption": 1}
    job = namespace.wait_ended("slow")
    assert job["status"]["state"] == "Succeeded", namespace.describe("slow")
    assert job["status"]["attempt"] == 2
    assert job["status"]["progress"]["step"] == STEPS
    second = namespace.pods("slow")
    assert second.keys() == first.keys()
    for name, pod in second.items():
        assert pod["metadata"]["uid"] != first[name]["metadata"]["uid"]
        assert pod["metadata"]["labels"]["tfparallel.dev/attempt"] == "2"
    log = namespace.kubectl("logs", "slow-chief-0")
    resumed = int(log.partition("resuming after step ")[2].split()[0])
    assert STEPS_BEFORE_THE_LOSS - 20 <= resumed < STEPS
    assert resumed % 20 == 0 or resumed >= before["status"]["progress"]["step"]


def test_operator_that_is_restarted_changes_nothing_for_the_job(
    namespace: namespaces.Namespace, training: Callable[[], namespaces.Object]
) -> None:
    training()
    first = namespace.pods("slow")
    cluster = namespace.cluster
    selector = "--selector=app.kubernetes.io/name=tfparallel-operator"
    cluster.run_kubectl("delete", "pod", operator.WHERE, selector, "--grace-period=0", "--force")
    rollout = ("rollout", "status", "deployment/tfparallel-operator", operator.WHERE)
    cluster.run_kubectl(*rollout, "--timeout=120s")
    job = namespace.wait_ended("slow")
    assert job["status"]["state"] == "Succeeded", namespace.describe("slow")
    assert job["status"]["attempt"] == 1
    assert job["status"]["progress"]["step"] == STEPS
    last = namespace.pods("slow")
    assert {n: p["metadata"]["uid"] for n, p in last.items()} == {
        n: p["metadata"]["uid"] for n, p in first.items()
    }
