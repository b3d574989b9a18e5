"""Pods are lost during training: the gang starts again from its checkpoint and finishes."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest

from testing.e2e import jobs, kubectl_namespaces, operator, volumes
from tfparallel_trainer.contract import exits

pytestmark = [pytest.mark.timeout(1800)]

SLOW = Path(__file__).parent / "models/slow.py"
STEPS = 400
STEPS_BEFORE_THE_LOSS = 24


@dataclasses.dataclass(frozen=True)
class Training:
    """A slow job with checkpoints that is under way."""

    namespace: kubectl_namespaces.KubectlNamespace
    volume: volumes.Volume

    def finish(self) -> kubectl_namespaces.Object:
        """The job, once it has ended; from now on without waits."""
        self.volume.touch("slow/hurry")
        return self.namespace.wait_ended("slow")

    def saved_steps(self, folder: Path) -> list[int]:
        """The steps of all checkpoints that were ever saved."""
        log = self.volume.fetch("slow/logs/train.jsonl", folder / "train.jsonl")
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        return [record["step"] for record in records if record["event"] == "checkpoint"]

    def resumed_after(self, attempt: int) -> int:
        """The step that this attempt began after; waits until it has begun."""
        parts: list[str] = []

        def resumed(status: kubectl_namespaces.Object) -> bool:
            chief = self.namespace.pods("slow").get("slow-chief-0")
            if chief is None or chief["status"]["phase"] != "Running":
                return False
            if status.get("attempt") != attempt:
                return False
            # The first attempt resumes nothing. A pod that stays logs all its attempts.
            first = max(2, int(chief["metadata"]["labels"]["tfparallel.dev/attempt"]))
            parts[:] = self.namespace.kubectl("logs", "slow-chief-0").split("resuming after step ")
            return len(parts) - 1 == attempt - first + 1

        self.namespace.wait("slow", resumed)
        return int(parts[-1].split()[0])


@pytest.fixture
def training(namespace: kubectl_namespaces.KubectlNamespace) -> Training:
    """Starts a slow job with checkpoints; returns it once it has come some way."""
    volume = volumes.make(namespace, "slow")
    namespace.kubectl("create", "configmap", "slow", f"--from-file=model.py={SLOW}")
    checkpoint = {"claim": "slow", "everySteps": 20}
    job = jobs.trained("slow", steps=STEPS, globalBatchSize=8, checkpoint=checkpoint)
    for replica in job["spec"]["tfReplicaSpecs"].values():
        # A pod that asks for nothing gets nothing while an operator starts, and is taken for lost.
        container = {"name": "tensorflow", "resources": {"requests": {"cpu": "400m"}}}
        replica["template"] = {"spec": {"containers": [container]}}
    namespace.apply(job)
    namespace.wait("slow", _moves)
    return Training(namespace, volume)


def _moves(status: kubectl_namespaces.Object) -> bool:
    assert status.get("state") not in {"Succeeded", "Failed"}, status
    reported = status.get("progress", {}).get("step", 0)
    return bool(status.get("state") == "Running" and reported >= STEPS_BEFORE_THE_LOSS)


@pytest.mark.long
def test_lost_worker_restarts_the_gang_from_its_state(training: Training) -> None:
    namespace = training.namespace
    first = namespace.pods("slow")
    namespace.lose("slow-worker-0")
    restarted = namespace.wait("slow", lambda status: status.get("attempt", 0) >= 2)
    assert restarted["status"]["restarts"] == {"failure": 0, "disruption": 1}
    job = training.finish()
    assert job["status"]["state"] == "Succeeded", namespace.describe("slow")
    assert job["status"]["attempt"] == 2
    assert job["status"]["progress"]["step"] == STEPS
    second = namespace.pods("slow")
    assert second.keys() == first.keys()
    assert _uids(second)["slow-chief-0"] == _uids(first)["slow-chief-0"], "it restarts in place"
    assert _uids(second)["slow-worker-0"] != _uids(first)["slow-worker-0"]
    log = namespace.kubectl("logs", "slow-chief-0")
    resumed = int(log.partition("resuming after step ")[2].split()[0])
    assert STEPS_BEFORE_THE_LOSS - 20 <= resumed < STEPS


def test_a_killed_trainer_restarts_in_its_pod(training: Training) -> None:
    namespace = training.namespace
    first = namespace.pods("slow")
    namespace.signal_trainer("slow-worker-0", signal.SIGKILL)
    resumed = training.resumed_after(attempt=2)
    assert STEPS_BEFORE_THE_LOSS - 20 <= resumed < STEPS
    log = namespace.kubectl("logs", "slow-chief-0")
    assert f"resuming after step {resumed} from memory" in log
    status = training.finish()["status"]
    assert status["state"] == "Succeeded", namespace.describe("slow")
    assert status["inPlace"] == {"attempt": 2, "podsSince": 1}
    assert status["restarts"] == {"failure": 1, "disruption": 0}
    assert status["restartCauses"] == {"RetryableExit": 1}
    assert status["progress"]["step"] == STEPS
    _stayed(first, namespace.pods("slow"))


@pytest.mark.long
def test_an_operator_that_is_restarted_between_two_attempts_begins_the_second_once(
    training: Training,
) -> None:
    namespace = training.namespace
    namespace.signal_trainer("slow-chief-0", signal.SIGSTOP)
    namespace.signal_trainer("slow-worker-0", signal.SIGKILL)
    recorded = namespace.wait("slow", lambda status: status.get("attempt") == 2)
    assert "inPlace" not in recorded["status"], "a trainer of the first attempt is still there"
    selector = "--selector=app.kubernetes.io/name=tfparallel-operator"
    cluster = namespace.cluster
    cluster.run_kubectl("delete", "pod", operator.WHERE, selector, "--grace-period=0", "--force")
    namespace.signal_trainer("slow-chief-0", signal.SIGCONT)
    assert training.resumed_after(attempt=2) < STEPS
    status = training.finish()["status"]
    assert status["state"] == "Succeeded", namespace.describe("slow")
    assert (status["attempt"], status["restarts"]["failure"]) == (2, 1)


def test_an_evicted_worker_costs_no_step(training: Training, tmp_path: Path) -> None:
    stopped = _evict(training, tmp_path)
    _finishes(training, tmp_path, {stopped, STEPS})


@pytest.mark.long
def test_evicted_worker_and_crashed_chief_cost_no_more_than_a_restart(
    training: Training, tmp_path: Path
) -> None:
    stopped = _evict(training, tmp_path)
    namespace = training.namespace
    namespace.crash("slow-chief-0")
    crashed = training.resumed_after(attempt=3)
    assert stopped <= crashed < STEPS
    status = namespace.job("slow")["status"]
    assert status["restarts"] == {"failure": 1, "disruption": 1}
    assert status["replicas"]["Chief"]["lastExit"]["code"] == 128 + 9
    _finishes(training, tmp_path, {stopped, crashed, STEPS})


def _evict(training: Training, folder: Path) -> int:
    """Evict the worker; return the step that the next attempt begins after, once it has begun."""
    namespace = training.namespace
    before = namespace.job("slow")
    log = folder / "log"
    with namespace.following("slow-worker-0", log) as follower:
        namespace.evict("slow-worker-0")
    output = log.read_text(encoding="utf-8")
    assert "asked to end: training stopped after step" in output, output + follower.complaints()
    stopped = int(output.rpartition("after step ")[2].split(",")[0])
    assert stopped >= before["status"]["progress"]["step"]
    assert training.resumed_after(attempt=2) == stopped, "an eviction loses no step"
    status = namespace.job("slow")["status"]
    assert status["restarts"] == {"failure": 0, "disruption": 1}
    ended = {role["lastExit"]["code"] for role in status["replicas"].values() if "lastExit" in role}
    assert ended <= {exits.Exit.PREEMPTED}
    return stopped


def _finishes(training: Training, folder: Path, saved: set[int]) -> None:
    job = training.finish()
    assert job["status"]["state"] == "Succeeded", training.namespace.describe("slow")
    assert job["status"]["progress"]["step"] == STEPS
    assert saved <= set(training.saved_steps(folder))


@pytest.mark.long
def test_operator_that_is_restarted_changes_nothing_for_the_job(training: Training) -> None:
    namespace = training.namespace
    first = namespace.pods("slow")
    cluster = namespace.cluster
    selector = "--selector=app.kubernetes.io/name=tfparallel-operator"
    cluster.run_kubectl("delete", "pod", operator.WHERE, selector, "--grace-period=0", "--force")
    rollout = ("rollout", "status", "deployment/tfparallel-operator", operator.WHERE)
    cluster.run_kubectl(*rollout, "--timeout=120s")
    _finishes_undisturbed(training, first)


@pytest.mark.long
def test_the_second_of_two_operators_takes_over_while_a_job_trains(training: Training) -> None:
    namespace = training.namespace
    first = namespace.pods("slow")
    cluster = namespace.cluster
    try:
        operator.install(cluster, "replicas=2")  # Waits until both are ready.
        acting = operator.acting(cluster)
        before = namespace.job("slow")["status"]["progress"]["step"]
        cluster.run_kubectl("delete", "pod", operator.WHERE, acting, "--grace-period=0", "--force")
        namespace.wait("slow", lambda _: operator.acting(cluster) not in ("", acting))
        namespace.wait("slow", lambda status: status["progress"]["step"] > before + 5)
        _finishes_undisturbed(training, first)
    finally:
        operator.install(cluster)


def _finishes_undisturbed(training: Training, first: dict[str, kubectl_namespaces.Object]) -> None:
    namespace = training.namespace
    job = training.finish()
    assert job["status"]["state"] == "Succeeded", namespace.describe("slow")
    assert job["status"]["attempt"] == 1
    assert job["status"]["progress"]["step"] == STEPS
    last = namespace.pods("slow")
    _stayed(first, last)


def _stayed(
    first: dict[str, kubectl_namespaces.Object], last: dict[str, kubectl_namespaces.Object]
) -> None:
    """See that pods are the same ones, and that the kubelet has restarted none of them."""
    assert _uids(last) == _uids(first)
    for pod in last.values():
        [container] = pod["status"]["containerStatuses"]
        assert container["restartCount"] == 0


def _uids(pods: dict[str, kubectl_namespaces.Object]) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods.items()}
