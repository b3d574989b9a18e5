"""Jobs of people who train with a script of their own: TF_CONFIG is all that they need."""

import json
from collections.abc import Callable

import pytest

from tests.e2e import jobs, namespaces, operator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

PRINT = "import os; print(os.environ['TF_CONFIG'])"
PRINT_AND_RESOLVE = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
for address in sum(config["cluster"].values(), []):
    host, _, port = address.partition(":")
    for attempt in range(60):
        try:
            socket.getaddrinfo(host, int(port))
            break
        except OSError:
            time.sleep(1)
    else:
        raise SystemExit(f"{host} is not found")
print(os.environ["TF_CONFIG"])
"""
SERVE = "import os, time; print(os.environ['TF_CONFIG'], flush=True); time.sleep(3600)"


def _config(namespace: namespaces.Namespace, pod: str) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(namespace.kubectl("logs", pod))
    return found


def test_every_role_is_told_who_it_is(namespace: namespaces.Namespace) -> None:
    namespace.apply(
        jobs.job(
            "roles",
            runPolicy={"cleanPodPolicy": "None"},
            tfReplicaSpecs={
                "Chief": jobs.script(PRINT_AND_RESOLVE),
                "Worker": jobs.script(PRINT_AND_RESOLVE, replicas=2),
                "PS": jobs.script(SERVE),
                "Evaluator": jobs.script(PRINT),
            },
        )
    )
    job = namespace.wait_ended("roles")
    assert job["status"]["state"] == "Succeeded", namespace.describe("roles")
    assert job["status"]["strategy"] == "ParameterServer"
    cluster = {
        "chief": ["roles-chief-0.roles:2222"],
        "worker": ["roles-worker-0.roles:2222", "roles-worker-1.roles:2222"],
        "ps": ["roles-ps-0.roles:2222"],
    }
    for role, index in (("chief", 0), ("ps", 0)):
        config = _config(namespace, f"roles-{role}-{index}")
        assert config == {"cluster": cluster, "task": {"type": role, "index": index}}


def test_servers_are_stopped_when_the_chief_has_succeeded(namespace: namespaces.Namespace) -> None:
    namespace.apply(
        jobs.job(
            "servers",
            tfReplicaSpecs={
                "Chief": jobs.script(PRINT),
                "Worker": jobs.script(PRINT),
                "PS": jobs.script(SERVE, replicas=2),
            },
        )
    )
    job = namespace.wait_ended("servers")
    assert job["status"]["state"] == "Succeeded", namespace.describe("servers")
    namespace.wait("servers", lambda _: not _of_role(namespace, "servers", "ps"))
    assert _of_role(namespace, "servers", "chief") == ["servers-chief-0"]


def _of_role(namespace: namespaces.Namespace, job: str, role: str) -> list[str]:
    pods = namespace.pods(job).items()
    return [n for n, p in pods if p["metadata"]["labels"]["tfparallel.dev/replica-role"] == role]


def test_devices_are_asked_for_and_counted(namespace: namespaces.Namespace) -> None:
    worker = jobs.script(PRINT, devices=3)
    namespace.apply(jobs.job("devices", tfReplicaSpecs={"Worker": worker}))
    job = namespace.wait_ended("devices")
    assert job["status"]["state"] == "Succeeded", namespace.describe("devices")
    [pod] = namespace.pods("devices").values()
    [container] = pod["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "3"}


def test_replica_that_fits_no_node_waits_and_says_why(namespace: namespaces.Namespace) -> None:
    worker = jobs.script(PRINT, devices=64)
    namespace.apply(jobs.job("huge", tfReplicaSpecs={"Worker": worker}))
    job = namespace.wait("huge", _is_told_why_it_waits)
    assert job["status"]["state"] == "Pending"
    assert "nvidia.com/gpu" in job["status"]["replicas"]["Worker"]["reason"]


def _is_told_why_it_waits(status: namespaces.Object) -> bool:
    return bool(status.get("replicas", {}).get("Worker", {}).get("reason"))


def test_example_of_an_own_script_trains(
    make_namespace: Callable[[str], namespaces.Namespace],
) -> None:
    namespace = make_namespace("tf-config")
    # The example's template asks for no security at all, as most that exist.
    namespace.cluster.run_kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce-"
    )
    script = operator.example("tf-config", "train.py")
    namespace.kubectl("create", "configmap", "tf-config", f"--from-file={script}")
    namespace.kubectl("apply", f"--filename={operator.example('tf-config')}")
    job = namespace.wait_ended("tf-config")
    assert job["status"]["state"] == "Succeeded", namespace.describe("tf-config")
    log = namespace.kubectl("logs", "tf-config-chief-0")
    accuracy = float(log.rpartition("accuracy ")[2].split()[0])
    assert accuracy > 0.85
    assert "progress" not in job["status"]
