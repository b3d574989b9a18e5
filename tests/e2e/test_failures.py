"""What goes wrong is told where people look: state, last exit, condition, Event, log."""

import pytest

from testing import invocation, waiting
from testing.e2e import jobs, kubectl_namespaces, modules, operator
from tfparallel_operator.api import names, paths
from tfparallel_trainer.contract import exits

pytestmark = [pytest.mark.timeout(1800)]


def test_module_that_does_not_import_fails_the_job(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    namespace.apply(jobs.trained("broken", epochs=1))
    # A pod that lacks a ConfigMap says so in no condition: only Events have the kubelet's words.
    missing = 'FailedMount: MountVolume.SetUp failed for volume "tfparallel-source"'
    shown = waiting.until(lambda: _why(namespace, "broken"), missing, when=lambda w: missing in w)
    assert 'configmap "broken" not found. What to do: Create the ConfigMap:' in shown
    source = "--from-literal=model.py=import no_such_package"
    namespace.kubectl("create", "configmap", "broken", source)
    job = namespace.wait_ended("broken")
    status = job["status"]
    assert status["state"] == "Failed", namespace.describe("broken")
    assert status["restarts"]["failure"] == 0
    exited = [r["lastExit"] for r in status["replicas"].values() if "lastExit" in r]
    assert exits.Exit.USER_ERROR in {e["code"] for e in exited}
    [failed] = [c for c in status["conditions"] if c["type"] == "Failed"]
    assert failed["status"] == "True"
    assert "broken-" in failed["message"]
    assert str(int(exits.Exit.USER_ERROR)) in failed["message"]
    # The pod of the root cause is kept; others may be deleted that end at the same time.
    pod = failed["message"].split()[0]
    assert "no_such_package" in namespace.kubectl("logs", pod)
    shown = _why(namespace, "broken")
    assert f"ago: {pod} exited with code {exits.Exit.USER_ERROR.value}" in shown
    assert "What to do: Correct what the log's last lines name" in shown
    assert f"log {pod.removeprefix('broken-')}: error:" in shown
    # The Event is written after the status.
    namespace.wait("broken", lambda _: failed["reason"] in _warnings(namespace))


def _why(namespace: kubectl_namespaces.KubectlNamespace, job: str) -> str:
    """What `tfparallel why` prints, on one line."""
    where = (f"--namespace={namespace.name}", f"--kubeconfig={namespace.cluster.kubeconfig}")
    done = invocation.run("why", job, *where, check=True)
    return " ".join(done.stdout.split())


def _warnings(namespace: kubectl_namespaces.KubectlNamespace) -> list[str]:
    """The reasons of all Events that warn."""
    reasons = "--output=jsonpath={.items[*].reason}"
    return namespace.kubectl("get", "events", "--field-selector=type=Warning", reasons).split()


def test_image_that_cannot_be_pulled_is_named_with_the_registrys_words(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    role = jobs.script("")
    [container] = role["template"]["spec"]["containers"]
    container["image"] = "127.0.0.1:1/nope:1"  # a registry that no node reaches
    namespace.apply(jobs.job("unpulled", tfReplicaSpecs={"Worker": role}))
    remedy = "What to do: Check the name of the image"
    # In the first moments the kubelet has tried nothing yet.
    shown = waiting.until(lambda: _why(namespace, "unpulled"), remedy, when=lambda w: remedy in w)
    assert "unpulled is pending: unpulled-worker-0 waits: " in shown
    assert "127.0.0.1:1/nope:1" in shown
    assert "connection refused" in shown


_LARGE_MODEL = modules.dense(width=1000, units=1000)
"""Its weights take 4 MB."""


def test_full_volume_fails_the_job_with_the_disks_words(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    body = jobs.trained("full", epochs=1, globalBatchSize=8)
    # A volume of 2 MiB in the place of the claim: the kernel says that it is full, as of any disk.
    volume = {"name": "tfparallel-output", "emptyDir": {"medium": "Memory", "sizeLimit": "2Mi"}}
    mount = {"name": "tfparallel-output", "mountPath": paths.OUTPUT_DIR}
    container = {"name": names.CONTAINER, "volumeMounts": [mount]}
    template = {"spec": {"containers": [container], "volumes": [volume]}}
    body["spec"]["tfReplicaSpecs"] = {"Worker": {"template": template}}
    body["spec"]["runPolicy"] = {"backoffLimit": 0}
    source = f"--from-literal=model.py={_LARGE_MODEL}"
    namespace.kubectl("create", "configmap", "full", source)
    namespace.apply(body)
    status = namespace.wait_ended("full")["status"]
    assert status["state"] == "Failed", namespace.describe("full")
    last = status["replicas"]["Worker"]["lastExit"]
    assert (last["replica"], last["code"]) == ("full-worker-0", exits.Exit.STORAGE_FAILED)
    shown = _why(namespace, "full")
    assert f"full-worker-0 exited with code {exits.Exit.STORAGE_FAILED.value}" in shown
    assert "No space left on device" in shown
    assert "What to do: See that the claim has free space" in shown


def test_replica_that_runs_out_of_memory_is_shown_with_its_limit(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    role = jobs.script("b'x' * (1 << 29)")
    [container] = role["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "100Mi"}}
    policy = {"backoffLimit": 0}
    namespace.apply(jobs.job("greedy", runPolicy=policy, tfReplicaSpecs={"Worker": role}))
    status = namespace.wait_ended("greedy")["status"]
    if status["state"] == "Succeeded":
        pytest.skip("This machine has no control group that limits memory.")
    shown = _why(namespace, "greedy")
    assert "greedy-worker-0 exited with code 137" in shown
    assert "with limits.memory 100Mi" in shown
    assert "What to do: Raise resources.limits.memory of the role" in shown


def test_script_that_fails_uses_up_its_retries(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    namespace.apply(
        jobs.job(
            "fragile",
            runPolicy={"backoffLimit": 1},
            tfReplicaSpecs={"Worker": jobs.script("raise SystemExit(3)")},
        )
    )
    status = namespace.wait_ended("fragile")["status"]
    assert status["state"] == "Failed", namespace.describe("fragile")
    assert status["restarts"]["failure"] == 1
    last = status["replicas"]["Worker"]["lastExit"]
    assert (last["replica"], last["code"]) == ("fragile-worker-0", 3)


def test_job_is_deleted_completely_without_an_operator(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    idle = jobs.script("import time; time.sleep(3600)")
    namespace.apply(jobs.job("orphan", tfReplicaSpecs={"Worker": idle}))
    namespace.wait("orphan", lambda status: status.get("state") == "Running")
    deployment = ("deployment/tfparallel-operator", operator.WHERE)
    namespace.cluster.run_kubectl("scale", *deployment, "--replicas=0", "--timeout=60s")
    try:
        namespace.kubectl("delete", "tfpj", "orphan")
        namespace.wait_gone("orphan")
        assert namespace.kubectl("get", "tfpj", "--output=name") == ""
    finally:
        namespace.cluster.run_kubectl("scale", *deployment, "--replicas=1")
        namespace.cluster.run_kubectl("rollout", "status", *deployment, "--timeout=120s")
