"""Statuses of pods that ended, as Kubernetes writes them: one or more for each row of the table."""

from collections.abc import Mapping, Sequence
from typing import Any

from testing.operator import objects
from tfparallel_operator.api import names
from tfparallel_operator.core import pod_ends

Status = dict[str, Any]

_AT = "2026-01-01T00:00:00Z"
DELETED = {"deletionTimestamp": _AT, "deletionGracePeriodSeconds": 30}
"""Metadata of a pod that is being deleted."""


def exited(code: int, reason: str = "Error", message: str = "") -> Status:
    """Return the status of the container that trains, which has exited."""
    ended = {"exitCode": code, "reason": reason, "message": message, "finishedAt": _AT}
    return objects.container(terminated=ended)


def _init_exited(name: str, code: int, reason: str = "Error") -> Status:
    ended = {"exitCode": code, "reason": reason, "message": "", "finishedAt": _AT}
    container = objects.container(waiting={"reason": "PodInitializing"})
    status = [{"name": name, "state": {"terminated": ended}}]
    return {"phase": "Failed", "initContainerStatuses": status, **container}


def _failed(reason: str, message: str, **more: Any) -> Status:
    return {"phase": "Failed", "reason": reason, "message": message, **more}


def _target(reason: str, message: str) -> Status:
    condition = {"type": "DisruptionTarget", "status": "True"}
    return {"conditions": [{**condition, "reason": reason, "message": message}]}


def _rejected(reason: str, message: str) -> Status:
    """Return the status of a pod that its node turned away: it has no statuses of containers."""
    return _failed(reason, f"Pod was rejected: {message}")


_LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 48Mi. "
_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
_NOT_LOCATED = "The container could not be located when the pod was terminated"
_KILLED = exited(137)

EXAMPLES: Mapping[str, Sequence[Status]] = {
    "pod-disk-limit": [
        _failed(
            "Evicted",
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            **_KILLED,
        )
    ],
    "container-disk-limit": [
        _failed(
            "Evicted",
            'Container tensorflow exceeded its local ephemeral storage limit "1Gi". ',
            **_KILLED,
        )
    ],
    "empty-dir-limit": [
        _failed("Evicted", f'Usage of EmptyDir volume "{volume}" exceeds the limit "1Gi". ', **how)
        for volume, how in (("cache", _KILLED), ("tfparallel-shm", exited(0, "Completed")))
    ],
    "pod-deadline": [
        _failed(
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
            **_KILLED,
        )
    ],
    "rejected-pressure": [_rejected("Evicted", "The node had condition: [DiskPressure]. ")],
    "rejected-shutdown": [
        _rejected("NodeShutdown", "Pod was rejected as the node is shutting down.")
    ],
    "rejected-resources": [
        _rejected(
            f"OutOf{name}",
            f"Node didn't have enough resource: {name}, requested: 4, used: 4, capacity: 4",
        )
        for name in ("cpu", "memory", "pods", "ephemeral-storage", "nvidia.com/gpu")
    ],
    "rejected-devices": [
        _rejected(
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
            " nvidia.com/gpu, which is unexpected",
        )
    ],
    "rejected-topology": [
        _rejected(
            "TopologyAffinityError",
            "Resources cannot be allocated with Topology locality",
        ),
        _rejected("SMTAlignmentError", "SMT Alignment Error: requested 3 cpus not multiple"),
    ],
    "rejected-placement": [
        _rejected("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match"),
        _rejected("TaintToleration", "Predicate TaintToleration failed: untolerated taint"),
        _rejected("NodePorts", "Predicate NodePorts failed: didn't have free ports"),
    ],
    "rejected-feature": [
        _rejected("SysctlForbidden", 'forbidden sysctl: "kernel.msgmax" not allowlisted'),
        _rejected("AppArmor", 'Cannot enforce AppArmor: profile "x" is not loaded'),
    ],
    "rejected-volumes": [
        _rejected("VolumeAttachmentLimitExceeded", "Node has reached its volume attachment limit")
    ],
    "rejected": [_rejected("InvalidNodeInfo", "Kubelet cannot get node info.")],
    "node-pressure": [
        _failed("Evicted", _LOW, **_target("TerminationByKubelet", _LOW), **how)
        for how in (_KILLED, exited(0, "Completed"), {})
    ],
    "critical-pod": [
        _failed(
            "Preempting",
            "Preempted in order to admit critical pod",
            **_target(
                "TerminationByKubelet",
                "Pod was preempted by Kubelet to accommodate a critical pod.",
            ),
            **exited(143),
        )
    ],
    "node-shutdown": [
        _failed("Terminated", _SHUTDOWN, **_target("TerminationByKubelet", _SHUTDOWN), **how)
        for how in (exited(143), exited(0, "Completed"))
    ]
    + [_failed("NodeShutdown", _SHUTDOWN, **exited(0, "Completed"))],
    "node-lost": [
        {
            "phase": "Running",
            "reason": "NodeLost",
            "message": "Node n1 which was running pod digits-worker-0 is unresponsive",
            **objects.container(running={"startedAt": _AT}),
        }
    ],
    "preemption": [
        {
            "phase": phase,
            **_target(
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            ),
            **how,
        }
        for phase, how in (
            ("Failed", exited(143)),
            ("Succeeded", exited(0, "Completed")),
            ("Running", objects.container(running={"startedAt": _AT})),
        )
    ],
    "taint": [
        {
            "phase": "Failed",
            **_target("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
            **_KILLED,
        }
    ],
    "device-taint": [
        {
            "phase": "Failed",
            **_target(
                "DeletionByDeviceTaintManager",
                "Device Taint manager: deleting due to NoExecute taint",
            ),
            **_KILLED,
        }
    ],
    "eviction": [
        {
            "phase": "Failed",
            **_target("EvictionByEvictionAPI", "Eviction API: evicting"),
            **exited(143),
        }
    ],
    "node-gone": [
        {
            "phase": "Failed",
            **_target("DeletionByPodGC", "PodGC: node no longer exists"),
            **objects.container(running={"startedAt": _AT}),
        }
    ],
    "disruption": [
        {"phase": "Succeeded", **_target("TerminationByKubelet", _SHUTDOWN), **exited(0)}
    ],
    "deletion": [
        {"phase": "Failed", **exited(143)},
        {"phase": "Failed", **exited(137, pod_ends.OOM_KILLED)},
        {"phase": "Succeeded", **exited(0, "Completed")},
    ],
    "container-unknown": [
        {"phase": "Failed", **exited(137, "ContainerStatusUnknown", _NOT_LOCATED)},
        _init_exited("fetch", 137, "ContainerStatusUnknown"),
        _init_exited(names.SOURCE_CONTAINER, 137, "ContainerStatusUnknown"),
        {
            "phase": "Failed",
            "containerStatuses": [
                {
                    "name": names.CONTAINER,
                    "state": {"waiting": {"reason": "ContainerCreating"}},
                    "lastState": {
                        "terminated": {
                            "exitCode": 137,
                            "reason": "ContainerStatusUnknown",
                            "message": "The container could not be located when the pod was"
                            " deleted.  The container used to be Running",
                        }
                    },
                    "restartCount": 1,
                }
            ],
        },
    ],
    "runtime-unknown": [{"phase": "Failed", **exited(255, "Unknown")}],
    "restarted-in-place": [
        {"phase": "Running", **exited(137, pod_ends.RESTARTING_ALL)},
        {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": names.CONTAINER,
                    "state": {"running": {"startedAt": _AT}},
                    "restartCount": 1,
                }
            ],
        },
    ],
    "out-of-memory": [
        {"phase": "Failed", **exited(137, pod_ends.OOM_KILLED)},
        _init_exited("fetch", 137, pod_ends.OOM_KILLED),
    ],
    "not-started": [
        {
            "phase": "Failed",
            **exited(128, "StartError", 'exec: "pythn": executable file not found in $PATH'),
        }
    ],
    "packages": [_init_exited(names.SOURCE_CONTAINER, 73)],
    "exit-asked": [{"phase": "Failed", **exited(code)} for code in (42, 76)],
    "exit-out-of-memory": [{"phase": "Failed", **exited(77)}],
    "exit-device": [{"phase": "Failed", **exited(71)}],
    "exit-stalled": [{"phase": "Failed", **exited(79)}],
    "exit-verification": [{"phase": "Failed", **exited(67)}],
    "exit": [
        {"phase": "Failed", **exited(1)},
        {"phase": "Failed", **exited(255)},
        {"phase": "Failed", **_KILLED},
        _init_exited("fetch", 1),
        {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": names.CONTAINER,
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
                    "restartCount": 3,
                }
            ],
        },
    ],
}
"""By the name of the row."""


def pod(name: str, status: Status) -> dict[str, Any]:
    """Return a pod that ended in the way of a row."""
    body = objects.pod(**status)
    if name == "deletion":
        body["metadata"] |= DELETED
    return body
