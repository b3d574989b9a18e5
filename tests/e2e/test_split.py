"""Models that are split over pods.

The long tier takes pods away, and compares with a model that is whole: in continuous integration
tests/e2e/test_restarts.py loses pods, and tests/trainer compares split models, killed ones too.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.e2e import exported, jobs, kubectl_namespaces, volumes
from tfparallel_trainer.contract import environment, exits

pytestmark = [pytest.mark.timeout(2400)]

MODEL = Path(__file__).parent / "models/split.py"
EPOCHS = 8
STEPS_BEFORE_A_LOSS = 60
STAGES = {"stage": 2, "tensor": 2, "microbatches": 2, "schedule": "GPipe"}
DEVICES = [[f"worker-{pod}/CPU:0", f"worker-{pod}/CPU:1"] for pod in (0, 1)]
"""Of two pods of two devices, stage by stage."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Where all jobs of this file run."""

    namespace: kubectl_namespaces.KubectlNamespace
    volume: volumes.Volume
    folder: Path

    def exported(self, name: str) -> float:
        """The accuracy of what a job left, by plain Keras."""
        file = self.volume.fetch(f"{name}/model.keras", self.folder / f"{name}.keras")
        return exported.accuracy(file, MODEL)


def _job(name: str, pods: int, devices: int, **spec: object) -> kubectl_namespaces.Object:
    """A job of workers whose CPU stands for several devices."""
    variable = {"name": environment.CPU_DEVICES, "value": str(devices)}
    template = {"spec": {"containers": [{"name": "tensorflow", "env": [variable]}]}}
    trainer = {
        "source": {"configMap": {"name": "split"}},
        "epochs": EPOCHS,
        "globalBatchSize": 64,
        "checkpoint": {"claim": "split", "everySteps": 20},
    }
    worker = {"replicas": pods, "template": template}
    return jobs.job(name, trainer=trainer, tfReplicaSpecs={"Worker": worker}, **spec)


@pytest.fixture(scope="module")
def trial(
    module_namespace: kubectl_namespaces.KubectlNamespace, tmp_path_factory: pytest.TempPathFactory
) -> Trial:
    """A volume, and the module."""
    volume = volumes.make(module_namespace, "split")
    module_namespace.kubectl("create", "configmap", "split", f"--from-file=model.py={MODEL}")
    return Trial(module_namespace, volume, tmp_path_factory.mktemp("split"))


@pytest.fixture(scope="module")
def whole(trial: Trial) -> Callable[[], float]:
    """The accuracy that the whole model comes to in one process, which trains meanwhile."""
    trial.volume.touch("whole/hurry")
    trial.namespace.apply(_job("whole", 1, 1, strategy="Mirrored"))

    def accuracy() -> float:
        status = trial.namespace.wait_ended("whole")["status"]
        assert status["state"] == "Succeeded", trial.namespace.describe("whole")
        assert "placement" not in status
        return trial.exported("whole")

    return accuracy


def _moved(step: int) -> Callable[[kubectl_namespaces.Object], bool]:
    def moved(status: kubectl_namespaces.Object) -> bool:
        assert status.get("state") not in {"Succeeded", "Failed"}, status
        return bool(status.get("progress", {}).get("step", 0) >= step)

    return moved


def _finish(trial: Trial, name: str, attempt: int) -> kubectl_namespaces.Object:
    """Let the next attempt resume and go to its end without waits; give the job's status."""
    namespace = trial.namespace
    namespace.wait(name, lambda status: status.get("attempt", 0) >= attempt)
    trial.volume.touch(f"{name}/hurry")
    status: kubectl_namespaces.Object = namespace.wait_ended(name)["status"]
    assert status["state"] == "Succeeded", namespace.describe(name)
    assert status["attempt"] == attempt
    assert status["progress"]["step"] == status["progress"]["totalSteps"]
    resumed = namespace.kubectl("logs", f"{name}-worker-0").partition("resuming after step ")[2]
    assert int(resumed.split()[0]) >= STEPS_BEFORE_A_LOSS - 20
    return status


def _accuracy(trial: Trial, name: str, status: kubectl_namespaces.Object) -> float:
    """How good the model is: the same by the trainer and by plain Keras."""
    accuracy = trial.exported(name)
    reported = float(status["progress"]["metrics"]["val_accuracy"])
    assert accuracy == pytest.approx(reported, abs=1e-3)
    return accuracy


def test_two_pods_of_two_devices_train_one_model(trial: Trial) -> None:
    namespace = trial.namespace
    trial.volume.touch("two/hurry")
    namespace.apply(_job("two", 2, 2, strategy="ModelSplit", mesh=STAGES))
    status = namespace.wait_ended("two")["status"]
    assert status["state"] == "Succeeded", namespace.describe("two")
    assert _devices(status) == DEVICES
    assert _accuracy(trial, "two", status) > 0.9


def _devices(status: kubectl_namespaces.Object) -> list[list[str]]:
    return [stage["devices"] for stage in status["placement"]["stages"]]


@pytest.mark.long
def test_four_pods_outlive_a_crash_and_end_as_if_the_model_were_whole(
    trial: Trial, whole: Callable[[], float]
) -> None:
    namespace = trial.namespace
    mesh = {"data": 2, "stage": -1, "microbatches": 2}
    namespace.apply(_job("four", 4, 1, strategy="ModelSplit", mesh=mesh))
    job = namespace.wait("four", _moved(STEPS_BEFORE_A_LOSS))
    placement = job["status"]["placement"]
    assert placement["mesh"] == {
        "data": 2,
        "stage": 2,
        "spatial": 1,
        "tensor": 1,
        "microbatches": 2,
        "schedule": "1F1B",
        "auto": False,
        "shardOptimizer": False,
        "recompute": False,
        "cuts": [],
    }
    first, second = placement["stages"]
    assert first["devices"] == ["worker-0/CPU:0", "worker-2/CPU:0"]
    assert second["devices"] == ["worker-1/CPU:0", "worker-3/CPU:0"]
    # 160 + 2,320 + 16,448 + 650 weights of eight bytes: no device has all of them.
    assert first["parameterBytes"] + second["parameterBytes"] == 8 * 19_578
    assert first["parameterBytes"] > 0
    assert second["parameterBytes"] > 0
    before = namespace.pods("four")
    assert {pod["metadata"]["labels"]["tfparallel.dev/mesh-pipeline"] for pod in before.values()}

    namespace.crash("four-worker-3")
    status = _finish(trial, "four", attempt=2)
    assert status["restarts"] == {"failure": 1, "disruption": 0}
    assert status["replicas"]["Worker"]["lastExit"]["code"] in {128 + 9, exits.Exit.PEER_LOST}
    assert _accuracy(trial, "four", status) == pytest.approx(whole(), abs=1e-9)


@pytest.mark.long
def test_two_pods_of_two_devices_lose_one_and_end_as_if_the_model_were_whole(
    trial: Trial, whole: Callable[[], float]
) -> None:
    namespace = trial.namespace
    namespace.apply(_job("lossy", 2, 2, strategy="ModelSplit", mesh=STAGES))
    job = namespace.wait("lossy", _moved(STEPS_BEFORE_A_LOSS))
    assert _devices(job["status"]) == DEVICES
    before = namespace.pods("lossy")

    namespace.lose("lossy-worker-1")
    status = _finish(trial, "lossy", attempt=2)
    assert status["restarts"] == {"failure": 0, "disruption": 1}
    after = namespace.pods("lossy")
    assert after.keys() == before.keys()
    replaced = {
        name
        for name, pod in after.items()
        if pod["metadata"]["uid"] != before[name]["metadata"]["uid"]
    }
    assert replaced == {"lossy-worker-1"}, "the other one restarts in place"
    accuracy = whole()
    assert accuracy > 0.9
    assert _accuracy(trial, "lossy", status) == pytest.approx(accuracy, abs=1e-9)
