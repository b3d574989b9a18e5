"""How a pod ends: what Kubernetes writes about it, and what that means for a job. Pure.

The table has a row for each way in which the source of Kubernetes ends a pod. The first matching
row counts.
"""

import dataclasses
import functools

from tfparallel_operator.api import policies
from tfparallel_operator.core import observation, pod_end_signs
from tfparallel_trainer.contract import exits

KUBERNETES = "1.37.2"
"""The release of Kubernetes whose source the rows follow."""

OOM_KILLED = "OOMKilled"
"""The runtime's reason when the kernel ended a container that ran out of memory."""

RESTARTING_ALL = "RestartingAllContainers"
"""The kubelet's reason while it restarts a pod in place, by a rule of one of its containers."""


def find(pod: observation.Pod) -> pod_end_signs.End:
    """Return how a pod ended, or is being ended."""
    return _find(pod_end_signs.read(pod))


@functools.lru_cache(maxsize=1024)
def _find(pod_signs: pod_end_signs.Signs) -> pod_end_signs.End:
    """Return the row of these signs. Cached, because the pods of a large job end alike."""
    return next(end for end in TABLE if end.matches(pod_signs))


def is_taken(pod: observation.Pod) -> bool:
    """Whether the cluster ended a pod.

    A deletion does not count, because the operator deletes pods too.
    """
    end = find(dataclasses.replace(pod, deleting=False))
    return end.cause is policies.Cause.DISRUPTION and not end.asks


_DISRUPTION = policies.Cause.DISRUPTION
_INFRASTRUCTURE = policies.Cause.INFRASTRUCTURE

_Limit = functools.partial(
    pod_end_signs.End,
    phrase="was evicted because it passed its own limit",
    reasons=("Evicted",),
    disrupted=False,
)

_OWN_LIMITS = (
    _Limit(
        name="pod-disk-limit",
        meaning="The pod wrote more to its node's disk than its containers' limits allow.",
        begins=("Pod ephemeral local storage usage exceeds",),
        source="kubelet/eviction/eviction_manager.go: podEphemeralStorageLimitEviction",
    ),
    _Limit(
        name="container-disk-limit",
        meaning="A container wrote more to its node's disk, its log included, than its limit.",
        begins=("Container ",),
        source="kubelet/eviction/eviction_manager.go: containerEphemeralStorageLimitEviction",
    ),
    _Limit(
        name="empty-dir-limit",
        meaning="A volume `emptyDir` holds more than its `sizeLimit`.",
        begins=("Usage of EmptyDir volume",),
        source="kubelet/eviction/eviction_manager.go: emptyDirLimitEviction",
    ),
    pod_end_signs.End(
        name="pod-deadline",
        meaning="The pod ran longer than `activeDeadlineSeconds` of its own template.",
        phrase="was ended at the deadline of its template",
        reasons=("DeadlineExceeded",),
        source="kubelet/active_deadline.go",
    ),
)
"""Limits of the pod itself: failures, because the same program would exceed them again."""

_REJECTED = "Pod was rejected: "
_Rejection = functools.partial(
    pod_end_signs.End,
    phrase="was turned away by its node",
    cause=_INFRASTRUCTURE,
    of_node=True,
)

_REJECTIONS = (
    _Rejection(
        name="rejected-pressure",
        meaning="The node is short of disk, memory or process IDs, and takes in no pod.",
        reasons=("Evicted",),
        begins=(_REJECTED, "The node had condition"),
        source="kubelet/eviction/eviction_manager.go: Admit",
    ),
    _Rejection(
        name="rejected-shutdown",
        meaning="The node is about to shut down.",
        reasons=("NodeShutdown",),
        begins=(_REJECTED,),
        source="kubelet/nodeshutdown/nodeshutdown_manager_linux.go: Admit",
    ),
    _Rejection(
        name="rejected-resources",
        meaning="Other pods of the node hold what the scheduler counted on.",
        reasons=("OutOf*",),
        source="kubelet/lifecycle/predicate.go",
    ),
    _Rejection(
        name="rejected-devices",
        meaning="The node could not give the pod its devices or CPUs, as after a restart.",
        reasons=("UnexpectedAdmissionError", "PodAdmissionError"),
        source="kubelet/cm/admission/errors.go",
    ),
    _Rejection(
        name="rejected-topology",
        meaning="The node has the CPUs and devices, but not next to each other.",
        reasons=("TopologyAffinityError", "SMTAlignmentError", "EmptyPodSharedPoolError"),
        source="kubelet/cm/topologymanager/topology_manager.go; kubelet/cm/cpumanager",
    ),
    _Rejection(
        name="rejected-placement",
        meaning="The node changed after the scheduler chose it: labels, taints, ports or system.",
        reasons=(
            "NodeAffinity",
            "NodeName",
            "NodePorts",
            "NodeUnschedulable",
            "TaintToleration",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "PodOSNotSupported",
        ),
        source="kubelet/lifecycle/predicate.go",
    ),
    _Rejection(
        name="rejected-feature",
        meaning="The node does not support, or does not permit, what the template asks for.",
        reasons=(
            "AppArmor",
            "SysctlForbidden",
            "SupplementalGroupsPolicyNotSupported",
            "PodLevelResourcesNotSupported",
            "PodFeatureUnsupported",
            "InitContainerRestartPolicyForbidden",
        ),
        source="kubelet/lifecycle/handlers.go; kubelet/sysctl/allowlist.go",
    ),
    _Rejection(
        name="rejected-volumes",
        meaning="The node can attach no more volumes.",
        reasons=("VolumeAttachmentLimitExceeded",),
        source="kubelet/kubelet.go: SyncPod",
    ),
    _Rejection(
        name="rejected",
        meaning="The node did not take the pod in, for another reason.",
        begins=(_REJECTED,),
        source="kubelet/kubelet.go: rejectPod",
    ),
)
"""Pods that a node rejects before any container runs."""

_Taken = functools.partial(pod_end_signs.End, cause=_DISRUPTION)

_TAKEN = (
    _Taken(
        name="node-pressure",
        meaning="The node ran short of memory, disk or process IDs, and ended the pod.",
        phrase="was evicted by its node",
        reasons=("Evicted",),
        of_node=True,
        source="kubelet/eviction/eviction_manager.go: synchronize",
    ),
    _Taken(
        name="critical-pod",
        meaning="The node ended the pod to make room for a critical pod.",
        phrase="was preempted by its node",
        reasons=("Preempting",),
        source="kubelet/preemption/preemption.go",
    ),
    _Taken(
        name="node-shutdown",
        meaning="The node shut down.",
        phrase="was ended with its node",
        reasons=("Terminated", "Shutdown", "NodeShutdown"),
        of_node=True,
        source="kubelet/nodeshutdown/nodeshutdown_manager.go",
    ),
    _Taken(
        name="node-lost",
        meaning="The node no longer answers.",
        phrase="was lost with its node",
        reasons=("NodeLost",),
        of_node=True,
        source="controller/util/node/controller_utils.go",
    ),
    _Taken(
        name="preemption",
        meaning="The scheduler preempted the pod for one of higher priority.",
        phrase="was preempted",
        reasons=("PreemptionByScheduler",),
        disrupted=True,
        source="scheduler/framework/preemption/executor.go",
    ),
    _Taken(
        name="taint",
        meaning="The node got a taint that the pod does not tolerate, as when it stops answering.",
        phrase="was evicted from its tainted node",
        reasons=("DeletionByTaintManager",),
        disrupted=True,
        of_node=True,
        source="controller/tainteviction/taint_eviction.go",
    ),
    _Taken(
        name="device-taint",
        meaning="A device of the pod got a taint, as when it is broken.",
        phrase="was evicted from its tainted device",
        reasons=("DeletionByDeviceTaintManager",),
        disrupted=True,
        of_node=True,
        source="controller/devicetainteviction/device_taint_eviction.go",
    ),
    _Taken(
        name="eviction",
        meaning="Somebody evicted the pod, as `kubectl drain` does.",
        phrase="was evicted",
        reasons=("EvictionByEvictionAPI",),
        disrupted=True,
        source="registry/core/pod/storage/eviction.go",
    ),
    _Taken(
        name="node-gone",
        meaning="The node was removed from the cluster.",
        phrase="was deleted with its node",
        reasons=("DeletionByPodGC",),
        disrupted=True,
        of_node=True,
        source="controller/podgc/gc_controller.go",
    ),
    _Taken(
        name="disruption",
        meaning="The cluster ended the pod for another reason, such as `TerminationByKubelet`.",
        phrase="was taken by the cluster",
        disrupted=True,
        source="kubelet/status/status_manager.go: mergePodStatus",
    ),
    _Taken(
        name="deletion",
        meaning="Somebody deleted the pod.",
        phrase="was deleted",
        deleting=True,
        source="registry/core/pod/strategy.go",
    ),
)
"""Pods that the cluster or a person ended, however their program exits then."""

_LOST_CONTAINERS = (
    pod_end_signs.End(
        name="container-unknown",
        meaning="The node restarted, or its runtime lost the container: 137 is no exit code here.",
        phrase="lost its container",
        cause=_DISRUPTION,
        container_reasons=("ContainerStatusUnknown",),
        of_node=True,
        source="kubelet/kubelet_pods.go; kubelet/status/status_manager.go",
    ),
    pod_end_signs.End(
        name="runtime-unknown",
        meaning="The runtime restarted with its node, and does not know how the container ended.",
        phrase="lost its container",
        cause=_DISRUPTION,
        container_reasons=("Unknown",),
        codes=(255,),
        of_node=True,
        source="containerd: internal/cri/server/helpers.go",
    ),
    pod_end_signs.End(
        name="restarted-in-place",
        meaning="A rule of a container restarted all containers of the pod in place.",
        phrase="was restarted in place",
        container_reasons=(RESTARTING_ALL,),
        source="kubelet/kubelet_pods.go",
    ),
)
"""Containers whose end the kubelet did not see."""

EXITED = pod_end_signs.End(
    name="exit",
    meaning="The program ended by itself, with any other exit code.",
    source="kubelet/kubelet_pods.go: convertContainerStatus",
)

VERIFICATION_FAILED = pod_end_signs.End(
    name="exit-verification",
    meaning="A step differed from the same step of one process, and would do so again.",
    cause=policies.Cause.PERMANENT_EXIT,
    codes=(exits.Exit.VERIFICATION_FAILED,),
    source="exit code 67",
)

_EXITS = (
    pod_end_signs.End(
        name="out-of-memory",
        meaning="The kernel ended the container at its memory limit.",
        cause=policies.Cause.OUT_OF_MEMORY,
        container_reasons=(OOM_KILLED,),
        source="containerd: internal/cri/server/helpers.go",
    ),
    pod_end_signs.End(
        name="not-started",
        meaning="The runtime could not start the program.",
        container_reasons=("StartError", "ContainerCannotRun"),
        source="containerd: internal/cri/server/helpers.go",
    ),
    pod_end_signs.End(
        name="packages",
        meaning="The init container could not download packages.",
        cause=_INFRASTRUCTURE,
        codes=(exits.Exit.STORAGE_FAILED,),
        of_source=True,
        source="exit code 73",
    ),
    pod_end_signs.End(
        name="exit-asked",
        meaning="Somebody asked the program to end, as for maintenance: it asks to run again.",
        cause=_DISRUPTION,
        asks=True,
        codes=exits.ASKED_TO_END,
        source="exit codes 42 of TensorFlow and 76",
    ),
    pod_end_signs.End(
        name="exit-out-of-memory",
        meaning="The trainer ran out of memory.",
        cause=policies.Cause.OUT_OF_MEMORY,
        codes=(exits.Exit.OUT_OF_MEMORY,),
        source="exit code 77",
    ),
    pod_end_signs.End(
        name="exit-device",
        meaning="A device, or what joins devices, failed.",
        of_node=True,
        codes=(exits.Exit.DEVICE_FAILED,),
        source="exit code 71",
    ),
    pod_end_signs.End(
        name="exit-stalled",
        meaning="A step did not end in time.",
        cause=policies.Cause.STALL,
        codes=(exits.Exit.STALLED,),
        source="exit code 79",
    ),
    VERIFICATION_FAILED,
    EXITED,
)
"""Programs that ended by themselves."""

TABLE = (*_OWN_LIMITS, *_REJECTIONS, *_TAKEN, *_LOST_CONTAINERS, *_EXITS)
"""All rows, in the order in which `find` tries them."""
