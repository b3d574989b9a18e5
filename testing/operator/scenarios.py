"""Lives of jobs, each a manifest and what happens to it, for tests that disturb the operator.

A disturbed operator may not have come as far as a step expects, so each step does what it can and
nothing else.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from testing.operator import memory_api, objects
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, resources

Step = Callable[[memory_api.MemoryApi], None]


def run(api: memory_api.MemoryApi) -> None:
    """The kubelet starts every pod that waits."""
    for pod in api.items(resources.PODS):
        if pod["status"]["phase"] == "Pending":
            api.write_status(pod, phase="Running", **objects.container(running={}))


def let_go(api: memory_api.MemoryApi) -> None:
    """The kubelet has ended the pods that are being deleted."""
    api.let_go()


def quiet(_: memory_api.MemoryApi) -> None:
    """Nothing happens: time passes."""


def end(name: str, code: int, reason: str = "Error") -> Step:
    """A pod's container ends with a code, if it runs."""

    def step(api: memory_api.MemoryApi) -> None:
        for pod in _named(api, name):
            if pod["status"]["phase"] == "Running":
                ended = objects.container(terminated={"exitCode": code, "reason": reason})
                api.write_status(pod, phase="Failed" if code else "Succeeded", **ended)

    return step


def evict(name: str) -> Step:
    """A node is drained: the pod is told to end, and its container has not ended yet."""

    def step(api: memory_api.MemoryApi) -> None:
        for pod in _named(api, name):
            pod["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "PreemptionByScheduler",
            }
            api.write_status(pod, **{**pod["status"], "conditions": [condition]})

    return step


def vanish(name: str) -> Step:
    """Somebody deletes a pod by force."""

    def step(api: memory_api.MemoryApi) -> None:
        for _ in _named(api, name):
            api.remove(resources.PODS.path("default", name))

    return step


def fail_on_node(name: str, node: str) -> Step:
    """A device of a node fails, and ends the container of a pod that runs there."""

    def step(api: memory_api.MemoryApi) -> None:
        for pod in _named(api, name):
            pod["spec"]["nodeName"] = node
        end(name, 71)(api)

    return step


def find_no_node(api: memory_api.MemoryApi) -> None:
    """The scheduler says of all pods that wait that it has found no node for a long time."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
        "lastTransitionTime": "2026-11-21T09:00:00Z",
    }
    for pod in api.items(resources.PODS):
        if pod["status"]["phase"] == "Pending":
            api.write_status(pod, **{**pod["status"], "conditions": [condition]})


def admit(api: memory_api.MemoryApi) -> None:
    """Kueue has quota for every Workload that waits."""
    for workload in api.items(resources.WORKLOADS):
        if not _true(workload, "QuotaReserved") and not _true(workload, "Finished"):
            pod_sets = workload["spec"]["podSets"]
            assigned = [{"name": pod_set["name"], "flavors": {}} for pod_set in pod_sets]
            admission = {"clusterQueue": "gpus", "podSetAssignments": assigned}
            conditions = {"QuotaReserved": "True", "Admitted": "True", "Evicted": "False"}
            _set_conditions(api, workload, conditions, admission=admission)


def preempt(api: memory_api.MemoryApi) -> None:
    """Kueue wants the quota of every Workload back."""
    for workload in api.items(resources.WORKLOADS):
        if _true(workload, "Admitted"):
            _set_conditions(api, workload, {"Evicted": "True"})


def _true(workload: client.Object, kind: str) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(
        condition["type"] == kind and condition["status"] == "True" for condition in conditions
    )


def _set_conditions(
    api: memory_api.MemoryApi,
    workload: client.Object,
    new_conditions: dict[str, str],
    **status: Any,
) -> None:
    before = workload.setdefault("status", {}).get("conditions", ())
    conditions = {condition["type"]: condition for condition in before}
    for kind, value in new_conditions.items():
        conditions[kind] = {
            "type": kind,
            "status": value,
            "reason": "Preempted",
            "message": "",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }
    workload["status"] |= {"conditions": list(conditions.values()), **status}
    metadata = workload["metadata"]
    api.touch(resources.WORKLOADS.path(metadata["namespace"], metadata["name"]))


def edit(change: dict[str, Any]) -> Step:
    """A person changes the spec."""

    def step(api: memory_api.MemoryApi) -> None:
        [job] = api.items(resources.JOBS)
        memory_api.merge(job["spec"], change)
        job["metadata"]["generation"] += 1
        api.touch(resources.JOBS.path("default", "digits"))

    return step


def _named(api: memory_api.MemoryApi, name: str) -> list[client.Object]:
    return [pod for pod in api.items(resources.PODS) if pod["metadata"]["name"] == name]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A job, what happens to it, and how it ends: its state, empty when it is deleted."""

    job: dict[str, Any]
    steps: tuple[Step, ...]
    state: str
    attempt: int = 1


def _elastic() -> dict[str, Any]:
    job = objects.job(workers=1, runPolicy={"scaleCooldownSeconds": 5})
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 3
    return job


def _more(role: str, replicas: int = 1, workers: int = 1, **spec: Any) -> dict[str, Any]:
    job = objects.job(workers=workers, **spec)
    added = {"replicas": replicas, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"][role] = added
    return job


def _queued() -> dict[str, Any]:
    job = objects.job()
    job["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    return job


def _hungry() -> dict[str, Any]:
    policy = {"outOfMemory": {"maxMemory": "8Gi"}}
    job = objects.job(workers=0, runPolicy=policy)
    limited = {
        "name": names.CONTAINER,
        "image": "trainer:test",
        "resources": {"limits": {"memory": "1Gi"}},
    }
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(containers=[limited])
    return job


def _careless() -> dict[str, Any]:
    rules = [
        {"roles": ["Worker"], "exitCodes": [3], "action": "Ignore"},
        {"exitCodes": [4], "action": "FailJob"},
    ]
    policy = {"failurePolicy": {"rules": rules}}
    return _more("PS", workers=2, strategy="ParameterServer", runPolicy=policy)


SCENARIOS = {
    "a gang that fails once, loses a pod once and then succeeds": Scenario(
        objects.job(),
        (
            run,
            end("digits-worker-0", 1),
            let_go,
            run,
            vanish("digits-worker-1"),
            let_go,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=3,
    ),
    "a job that fails for good and is cleaned up": Scenario(
        objects.job(runPolicy={"backoffLimit": 0, "cleanPodPolicy": "All"}),
        (run, end("digits-worker-1", 3), let_go),
        "Failed",
    ),
    "a job that is suspended, resumed and scaled": Scenario(
        _elastic(),
        (
            run,
            edit({"runPolicy": {"suspend": True}}),
            let_go,
            edit({"runPolicy": {"suspend": False}}),
            run,
            edit({"tfReplicaSpecs": {"Worker": {"replicas": 2}}}),
            let_go,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=3,
    ),
    "a gang of which one replica is run again by a rule": Scenario(
        objects.job(
            runPolicy={"failurePolicy": {"rules": [{"exitCodes": [3], "action": "RestartReplica"}]}}
        ),
        (run, end("digits-worker-1", 3), let_go, run, end("digits-chief-0", 0), let_go),
        "Succeeded",
    ),
    "a job whose pods start together, and that is suspended": Scenario(
        objects.job(scheduling={"gang": "Coscheduling"}),
        (
            run,
            end("digits-worker-0", 1),
            let_go,
            edit({"runPolicy": {"suspend": True}}),
            let_go,
            edit({"runPolicy": {"suspend": False}}),
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=3,
    ),
    "a job in a queue that is preempted and admitted again": Scenario(
        _queued(),
        (
            admit,
            run,
            end("digits-worker-0", 1),
            let_go,
            run,
            preempt,
            let_go,
            admit,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=3,
    ),
    "a job in a queue that is suspended and resumed": Scenario(
        _queued(),
        (
            admit,
            run,
            edit({"runPolicy": {"suspend": True}}),
            let_go,
            edit({"runPolicy": {"suspend": False}}),
            admit,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=2,
    ),
    "a job with a claim of its own that fails once and is removed": Scenario(
        objects.job(
            workers=1,
            volumeClaimTemplates=[objects.claim_template()],
            runPolicy={"ttlSecondsAfterFinished": 5},
        ),
        (run, end("digits-worker-0", 1), let_go, run, end("digits-chief-0", 0)),
        "",
        attempt=2,
    ),
    "a job that is removed after its time to live": Scenario(
        objects.job(workers=0, runPolicy={"ttlSecondsAfterFinished": 5}),
        (run, end("digits-chief-0", 0)),
        "",
    ),
    "parameter servers of which a worker and a server are lost": Scenario(
        _more("PS", 2, strategy="ParameterServer"),
        (
            run,
            end("digits-worker-0", 1),
            let_go,
            run,
            end("digits-ps-1", 1),
            let_go,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
    ),
    "an evaluator that fails, and is stopped some time after the end": Scenario(
        _more("Evaluator", runPolicy={"evaluatorGraceSeconds": 15}),
        (run, end("digits-evaluator-0", 1), let_go, run, end("digits-chief-0", 0), quiet, let_go),
        "Succeeded",
    ),
    "a gang of which a node is drained": Scenario(
        objects.job(),
        (
            run,
            evict("digits-worker-1"),
            end("digits-worker-1", 143),
            end("digits-worker-0", 75),
            let_go,
            let_go,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=2,
    ),
    "a gang that avoids a node, and finds no other": Scenario(
        objects.job(workers=1),
        (
            run,
            fail_on_node("digits-worker-0", "bad"),
            let_go,
            run,
            fail_on_node("digits-worker-0", "bad"),
            let_go,
            quiet,
            find_no_node,
            let_go,
            run,
            end("digits-chief-0", 0),
            let_go,
        ),
        "Succeeded",
        attempt=3,
    ),
    "a replica that runs out of memory twice": Scenario(
        _hungry(),
        (
            run,
            end("digits-chief-0", 137, "OOMKilled"),
            let_go,
            run,
            end("digits-chief-0", 137, "OOMKilled"),
            let_go,
            quiet,
            run,
            end("digits-chief-0", 0),
        ),
        "Succeeded",
        attempt=3,
    ),
    "pods that wait for too long, and are deleted some time after the end": Scenario(
        objects.job(
            runPolicy={
                "pendingDeadlineSeconds": 60,
                "cleanPodPolicy": "None",
                "cleanup": [{"afterSeconds": 15, "delete": "Pods"}],
            }
        ),
        (*[quiet] * 6, let_go, quiet, let_go, quiet, let_go),
        "Failed",
    ),
    "losses of which one is ignored and one fails the job": Scenario(
        _careless(),
        (run, end("digits-worker-0", 3), let_go, end("digits-worker-1", 4), let_go),
        "Failed",
    ),
}
