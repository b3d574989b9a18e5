"""The other strategies as pods: parameter servers with losses, and one pod with several devices.

In continuous integration tests/examples/test_examples.py evaluates beside servers, and
tests/trainer/engines trains with servers that are lost.
"""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from testing.e2e import jobs, kubectl_namespaces, operator, volumes
from tfparallel_trainer.contract import environment, exits

pytestmark = [pytest.mark.timeout(1800)]

MODELS = Path(__file__).parent / "models"
STEPS = 400
STEPS_BEFORE_A_LOSS = 24


@pytest.fixture
def servers(namespace: kubectl_namespaces.KubectlNamespace) -> volumes.Volume:
    """An asynchronous job; gives its volume."""
    volume = volumes.make(namespace, "servers")
    source = f"--from-file=model.py={MODELS / 'slow.py'}"
    namespace.kubectl("create", "configmap", "servers", source)
    trainer = {
        "source": {"configMap": {"name": "servers"}},
        "steps": STEPS,
        "globalBatchSize": 8,
        "checkpoint": {"claim": "servers", "everySteps": 20},
    }
    namespace.apply(
        jobs.job(
            "servers",
            strategy="ParameterServer",
            trainer=trainer,
            tfReplicaSpecs={"Worker": {"replicas": 2}, "PS": {"replicas": 1}},
        )
    )
    return volume


def _reached(step: int) -> Callable[[kubectl_namespaces.Object], bool]:
    def reached(status: kubectl_namespaces.Object) -> bool:
        assert status.get("state") not in {"Succeeded", "Failed"}, status
        return bool(status.get("progress", {}).get("step", 0) >= step)

    return reached


def _uids(namespace: kubectl_namespaces.KubectlNamespace) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in namespace.pods("servers").items()}


def test_parameter_servers_outlive_the_loss_of_a_worker(
    namespace: kubectl_namespaces.KubectlNamespace, servers: volumes.Volume
) -> None:
    _lose_a_worker(namespace)
    _finishes(namespace, servers, {"failure": 0, "disruption": 1})


def test_a_killed_server_and_the_chief_restart_in_their_pods(
    namespace: kubectl_namespaces.KubectlNamespace, servers: volumes.Volume
) -> None:
    namespace.wait("servers", _reached(STEPS_BEFORE_A_LOSS))
    first = _uids(namespace)
    namespace.signal_trainer("servers-ps-0", signal.SIGKILL)
    restarted = namespace.wait("servers", lambda status: "replicaPodsSince" in status)
    assert restarted["status"]["replicaPodsSince"] == {"ps-0": 0, "chief-0": 0}
    assert restarted["status"]["replicaAttempts"] == {"ps-0": 1, "chief-0": 1}
    namespace.wait("servers", lambda _: "resuming after step" in _log(namespace))
    assert _uids(namespace) == first
    _finishes(namespace, servers, {"failure": 1, "disruption": 0})


@pytest.mark.long
def test_parameter_servers_outlive_the_loss_of_a_worker_and_of_a_server(
    namespace: kubectl_namespaces.KubectlNamespace, servers: volumes.Volume
) -> None:
    second = _lose_a_worker(namespace)
    namespace.crash("servers-ps-0")
    namespace.wait("servers", lambda s: s["restarts"]["failure"] == 1)
    namespace.wait("servers", lambda _: "resuming after step" in _log(namespace))
    third = _uids(namespace)
    replaced = {name for name in second if second[name] != third[name]}
    assert replaced == {"servers-ps-0"}
    _finishes(namespace, servers, {"failure": 1, "disruption": 1})


def _lose_a_worker(namespace: kubectl_namespaces.KubectlNamespace) -> dict[str, str]:
    """Lose a worker while the others train; return the pods once it is back."""
    job = namespace.wait("servers", _reached(STEPS_BEFORE_A_LOSS))
    metrics = job["status"]["progress"]["metrics"]
    assert {"loss", "staleness_mean", "staleness_max"} <= metrics.keys()
    first = _uids(namespace)
    assert sorted(first) == [
        f"servers-{name}" for name in ("chief-0", "ps-0", "worker-0", "worker-1")
    ]

    namespace.lose("servers-worker-1")
    namespace.wait("servers", _reached(job["status"]["progress"]["step"] + 16))
    namespace.wait("servers", lambda _: "worker-1 is back" in _log(namespace))
    second = _uids(namespace)
    assert {name for name in first if first[name] != second[name]} == {"servers-worker-1"}
    status = namespace.job("servers")["status"]
    assert status["restarts"] == {"failure": 0, "disruption": 1}
    return second


def _finishes(
    namespace: kubectl_namespaces.KubectlNamespace, volume: volumes.Volume, restarts: dict[str, int]
) -> None:
    volume.touch("servers/hurry")
    ended = namespace.wait_ended("servers")
    status = ended["status"]
    assert status["state"] == "Succeeded", namespace.describe("servers")
    assert status["restarts"] == restarts
    assert status["progress"]["step"] == STEPS
    assert float(status["progress"]["metrics"]["loss"]) < 0.1
    namespace.wait("servers", lambda _: not _running(namespace))


def _log(namespace: kubectl_namespaces.KubectlNamespace) -> str:
    """The chief's log; empty while its pod is replaced."""
    role = "tfparallel.dev/job-name=servers,tfparallel.dev/replica-role=chief"
    return namespace.kubectl("logs", f"--selector={role}", "--tail=-1", "--ignore-errors")


def _running(namespace: kubectl_namespaces.KubectlNamespace) -> list[str]:
    pods = namespace.pods("servers").items()
    return [name for name, pod in pods if pod["status"]["phase"] == "Running"]


def test_one_pod_with_two_devices_says_when_the_loss_is_no_number(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    name = "diverging"
    source = f"--from-file=model.py={MODELS / f'{name}.py'}"
    namespace.kubectl("create", "configmap", name, source)
    devices = {"name": environment.CPU_DEVICES, "value": "2"}
    container = {"name": "tensorflow", "env": [devices]}
    namespace.apply(
        jobs.job(
            name,
            strategy="Mirrored",
            trainer={"source": {"configMap": {"name": name}}, "epochs": 1},
            tfReplicaSpecs={"Worker": {"template": {"spec": {"containers": [container]}}}},
        )
    )
    status = namespace.wait_ended(name)["status"]
    assert status["state"] == "Failed", namespace.describe(name)
    assert status["restarts"] == {"failure": 0, "disruption": 0}
    assert status["replicas"]["Worker"]["lastExit"]["code"] == exits.Exit.NON_FINITE
    [failed] = [c for c in status["conditions"] if c["type"] == "Failed"]
    assert "In step 3 the loss is nan: training stopped" in failed["message"]
    log = namespace.kubectl("logs", f"{name}-worker-0")
    assert "2 ranks = 1 process with 2 devices each" in log


@pytest.mark.long
def test_an_evaluator_evaluates_beside_servers(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    name = "digits-servers"
    volumes.make(namespace, name)
    module = f"--from-file={operator.example(name, 'model.py')}"
    namespace.kubectl("create", "configmap", name, module)
    document: kubectl_namespaces.Object = yaml.safe_load(operator.example(name).read_text("utf-8"))
    document["spec"]["trainer"]["epochs"] = 3
    document["spec"]["tfReplicaSpecs"]["Evaluator"] = {}
    namespace.apply(document)
    status = namespace.wait_ended(name)["status"]
    assert status["state"] == "Succeeded", namespace.describe(name)
    step, metrics = status["progress"]["step"], status["progress"]["metrics"]
    assert float(metrics["val_accuracy"]) > 0.7
    evaluator = namespace.kubectl("logs", f"{name}-evaluator-0")
    [line] = [line for line in evaluator.splitlines() if f"step {step}  evaluation" in line]
    assert f"val_accuracy {metrics['val_accuracy']}" in line.replace("accuracy", "val_accuracy")
    assert "  evaluation  " not in namespace.kubectl("logs", f"{name}-chief-0")
