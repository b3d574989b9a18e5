"""`tfparallel report` of a job in pods that lost a worker: while it runs, and when it has ended."""

import pathlib
import re

import pytest

from testing import pictures
from testing.e2e import jobs, kubectl_namespaces, terminal, volumes

pytestmark = [pytest.mark.timeout(1800)]

GATED = pathlib.Path(__file__).parent / "models/gated.py"
STEPS = 200
STEPS_OF_AN_ATTEMPT = 32
STEPS_OF_AN_EPOCH = 8
LOSS = "ReplicaFailed: gated-worker-1 exited with code 137"


class Page:
    """A report as people read it."""

    def __init__(self, file: pathlib.Path) -> None:
        text = file.read_text(encoding="utf-8")
        self.text = pictures.words(text)
        drawn = {pictures.title(picture): picture for picture in pictures.find(text)}
        self.descriptions = {
            title: pictures.description(picture) for title, picture in drawn.items()
        }
        self.placement = {text.content for text in pictures.texts(drawn["Placement"])}

    @property
    def shares(self) -> dict[str, float]:
        """Hundredths of the age of the job, by activity."""
        shares = re.findall(r"([A-Za-z]+) ([\d.]+)%", self.descriptions["Time by activity"])
        return {activity: float(share) for activity, share in shares}


def start(namespace: kubectl_namespaces.KubectlNamespace) -> volumes.Volume:
    """Have two workers train."""
    volume = volumes.make(namespace, "gated")
    namespace.kubectl("create", "configmap", "gated", f"--from-file=model.py={GATED}")
    container = {"name": "tensorflow", "resources": {"requests": {"cpu": "400m"}}}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    trainer = {
        "source": {"configMap": {"name": "gated"}},
        "steps": STEPS,
        "globalBatchSize": 8,
        "checkpoint": {"claim": "gated", "everySteps": 20},
    }
    policy = {"cleanPodPolicy": "None"}  # a worker that ends after the first one keeps its pod
    roles = {"Worker": worker}
    namespace.apply(jobs.job("gated", trainer=trainer, runPolicy=policy, tfReplicaSpecs=roles))
    return volume


def wait_trained(namespace: kubectl_namespaces.KubectlNamespace, after: int) -> int:
    """Wait until an attempt after this one is at its gate, or an epoch before; return its number.

    On a busy machine an attempt may be lost before its first step, which is not what is tested.
    """

    def has_trained(status: kubectl_namespaces.Object) -> bool:
        assert status.get("state") not in {"Succeeded", "Failed"}, status
        attempt = status.get("attempt", 0)
        step = attempt * STEPS_OF_AN_ATTEMPT - STEPS_OF_AN_EPOCH
        reached = status.get("progress", {}).get("step", 0)
        return bool(status.get("state") == "Running" and attempt > after and reached >= step)

    return int(namespace.wait("gated", has_trained)["status"]["attempt"])


def test_a_report_shows_every_attempt_of_a_job_in_pods(
    namespace: kubectl_namespaces.KubectlNamespace, tmp_path: pathlib.Path
) -> None:
    volume, shell = start(namespace), terminal.shell(namespace, tmp_path)

    def report(name: str) -> Page:
        file = tmp_path / f"{name}.html"
        assert shell.run(f"tfparallel report gated -o {file}") == f"{file}\n"
        return Page(file)

    lost = wait_trained(namespace, 0)
    first = namespace.pods("gated")
    namespace.crash("gated-worker-1")
    last = wait_trained(namespace, lost)
    second = namespace.pods("gated")
    running = report("running")
    volume.touch("gated/hurry")
    job = namespace.wait_ended("gated")
    assert job["status"]["state"] == "Succeeded", namespace.describe("gated")
    ended = report("ended")

    for page, state in ((running, "Running"), (ended, "Succeeded")):
        assert f"gated {state} " in page.text
        assert "strategy MultiWorkerMirrored replicas Worker 2" in page.text
        assert f"restarts {last - 1} (RetryableExit {last - 1})" in page.text
        assert all(f"{name} " in page.text for name in ("operator", "TensorFlow", "Keras"))
        assert "globalBatchSize: 8" in page.text
        for name, pod in second.items():
            replica, node = name.removeprefix("gated-"), pod["spec"]["nodeName"]
            assert f"{replica} {node} {name} {last} " in page.text
            assert {replica, node} <= page.placement
        assert {"data 0", "data 1"} <= page.placement
        assert page.descriptions["loss by step"].startswith("training from ")
        assert {"Examples a second", "Memory of the coordinator, MiB"} <= page.descriptions.keys()
        timeline = page.descriptions["Timeline"]
        assert f"Replicas: 2. Processes: {last + 1}. Interruptions: " in timeline
        assert LOSS in timeline
        assert f"{LOSS} " in page.text.partition("Starts of training")[2]
        assert sum(page.shares.values()) == pytest.approx(100, abs=0.05 * len(page.shares))
        assert {"training", "starting", "restarting"} <= page.shares.keys()
        assert "are gone" not in page.text
    node = second["gated-worker-0"]["spec"]["nodeName"]
    assert f"worker-0 {node} gated-worker-0 {last} runs" in running.text
    assert f"worker-0 {node} gated-worker-0 {last} Completed" in ended.text
    assert f"steps {STEPS} of {STEPS}" in ended.text
    assert first.keys() == second.keys()

    namespace.kubectl("delete", "events", "--all")
    bare = report("bare")
    assert "The job's Events are gone" in bare.text
    assert job["status"]["inPlace"] == {"attempt": last, "podsSince": 1}
    assert "are gone" not in bare.text.replace("The job's Events are gone", "")
    assert "Replicas: 2. Processes: 2." in bare.descriptions["Timeline"], "worker 0 has stayed"
    if last == 2:
        assert "RetryableExit: by the status; the event is gone" in bare.descriptions["Timeline"]
    assert bare.shares == ended.shares, "the status outlives Events and pods"
