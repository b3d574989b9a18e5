"""How a pod ends: what Kubernetes writes of it, and what that means for a job. Pure.

A row for each way in which the source of Kubernetes ends a pod. The first row that matches counts.
"""

import dataclasses

from tfparallel_operator.api import policies
from tfparallel_operator.core import observation
from tfparallel_trainer.contract import exits

KUBERNETES = "1.37.2"
"""The release whose source the rows follow."""

OOM_KILLED = "OOMKilled"
"""The runtime's reason when the kernel ended a container that ran out of memory."""

RESTARTING_ALL = "RestartingAllContainers"
"""The kubelet's reason while it restarts a pod in place, by a rule of one of its containers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One way in which a pod ends."""

    name: str
    """The key of its remedy, and of its row in the documentation."""
    meaning: str
    """What has happened, as a sentence."""
    source: str
    """Where Kubernetes or a runtime writes it."""
    words: str = ""
    """What became of the pod, to stand behind its name; empty: its exit says it."""
    cause: policies.Cause | None = None
    """Why the replica was lost; None: it failed, and the role's restartPolicy decides."""
    reasons: tuple[str, ...] = ()
    """Reason of the pod's status, else of its condition DisruptionTarget; * stands for any rest."""
    begins: tuple[str, ...] = ()
    """How the message of that reason begins; empty: in any way."""
    disrupted: bool | None = None
    """Whether the condition DisruptionTarget is true; None: it does not matter."""
    deleting: bool = False
    """Whether the pod has to have a deletion timestamp."""
    container_reasons: tuple[str, ...] = ()
    """Reason of the container's end; empty: any."""
    codes: tuple[int, ...] = ()
    """Exit code of the container; empty: any."""
    asks: bool = False
    """Whether the program asks to be started again, which it may do while training progresses."""
    of_source: bool = False
    """Whether the init container that fetches the source has to have ended."""

    @property
    def of_pod(self) -> bool:
        """Whether the pod was ended, however its program ended then."""
        return bool(self.reasons or self.begins or self.disrupted or self.deleting)

    def matches(self, pod: observation.Pod) -> bool:
        """Whether a pod has ended, or is being ended, in this way."""
        if self.of_pod:
            reason, message = words(pod)
            return (
                (not self.reasons or any(_fits(reason, word) for word in self.reasons))
                and message.startswith(self.begins or "")
                and self.disrupted in (None, pod.disrupted)
                and self.deleting <= pod.deleting
            )
        if pod.exit is None:
            return not (self.container_reasons or self.codes)
        return (
            (not self.container_reasons or pod.exit.reason in self.container_reasons)
            and (not self.codes or pod.exit.code in self.codes)
            and self.of_source <= pod.exit.of_source
        )


def find(pod: observation.Pod) -> End:
    """Return how a pod ended, or is being ended."""
    return next(end for end in TABLE if end.matches(pod))


def words(pod: observation.Pod) -> tuple[str, str]:
    """Return reason and message of a pod's end, in the words of who ended it."""
    if not pod.reason and pod.exit is not None and pod.exit.code < 0:
        return pod.exit.reason, pod.exit.message
    return pod.reason, pod.message


def is_taken(pod: observation.Pod) -> bool:
    """Whether the cluster took a pod, deletion aside: the operator itself deletes pods, too."""
    end = find(dataclasses.replace(pod, deleting=False))
    return end.cause is policies.Cause.DISRUPTION and not end.asks


def _fits(reason: str, pattern: str) -> bool:
    return reason.startswith(pattern[:-1]) if pattern.endswith("*") else reason == pattern


_DISRUPTION = policies.Cause.DISRUPTION
_INFRASTRUCTURE = policies.Cause.INFRASTRUCTURE

_OWN_LIMITS = (
    End(
        name="pod-disk-limit",
        meaning="The pod wrote more to its node's disk than its containers' limits allow.",
        words="was evicted because it passed its own limit",
        reasons=("Evicted",),
        begins=("Pod ephemeral local storage usage exceeds",),
        disrupted=False,
        source="kubelet/eviction/eviction_manager.go: podEphemeralStorageLimitEviction",
    ),
    End(
        name="container-disk-limit",
        meaning="A container wrote more to its node's disk, its log included, than its limit.",
        words="was evicted because it passed its own limit",
        reasons=("Evicted",),
        begins=("Container ",),
        disrupted=False,
        source="kubelet/eviction/eviction_manager.go: containerEphemeralStorageLimitEviction",
    ),
    End(
        name="empty-dir-limit",
        meaning="A volume `emptyDir` holds more than its `sizeLimit`.",
        words="was evicted because it passed its own limit",
        reasons=("Evicted",),
        begins=("Usage of EmptyDir volume",),
        disrupted=False,
        source="kubelet/eviction/eviction_manager.go: emptyDirLimitEviction",
    ),
    End(
        name="pod-deadline",
        meaning="The pod ran longer than `activeDeadlineSeconds` of its own template.",
        words="was ended at the deadline of its template",
        reasons=("DeadlineExceeded",),
        source="kubelet/active_deadline.go",
    ),
)
"""Limits of the pod itself: the same program passes them again, so these are failures."""

_TURNED_AWAY = "was turned away by its node"
_REJECTED = "Pod was rejected: "

_REJECTIONS = (
    End(
        name="rejected-pressure",
        meaning="The node is short of disk, memory or process IDs, and takes in no pod.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        reasons=("Evicted",),
        begins=(_REJECTED, "The node had condition"),
        source="kubelet/eviction/eviction_manager.go: Admit",
    ),
    End(
        name="rejected-shutdown",
        meaning="The node is about to shut down.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        reasons=("NodeShutdown",),
        source="kubelet/nodeshutdown/nodeshutdown_manager_linux.go: Admit",
    ),
    End(
        name="rejected-resources",
        meaning="Other pods of the node hold what the scheduler counted on.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        reasons=("OutOf*",),
        source="kubelet/lifecycle/predicate.go",
    ),
    End(
        name="rejected-devices",
        meaning="The node could not give the pod its devices or CPUs, as after a restart.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        reasons=("UnexpectedAdmissionError", "PodAdmissionError"),
        source="kubelet/cm/admission/errors.go",
    ),
    End(
        name="rejected-topology",
        meaning="The node has the CPUs and devices, but not next to each other.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        reasons=("TopologyAffinityError", "SMTAlignmentError", "EmptyPodSharedPoolError"),
        source="kubelet/cm/topologymanager/topology_manager.go; kubelet/cm/cpumanager",
    ),
    End(
        name="rejected-placement",
        meaning="The node changed after the scheduler chose it: labels, taints, ports or system.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
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
    End(
        name="rejected-feature",
        meaning="The node does not support, or does not permit, what the template asks for.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
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
    End(
        name="rejected-volumes",
        meaning="The node can attach no more volumes.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        reasons=("VolumeAttachmentLimitExceeded",),
        source="kubelet/kubelet.go: SyncPod",
    ),
    End(
        name="rejected",
        meaning="The node did not take the pod in, for another reason.",
        words=_TURNED_AWAY,
        cause=_INFRASTRUCTURE,
        begins=(_REJECTED,),
        source="kubelet/kubelet.go: rejectPod",
    ),
)
"""Pods that a node does not take in: nothing runs in them."""

_TAKEN = (
    End(
        name="node-pressure",
        meaning="The node ran short of memory, disk or process IDs, and ended the pod.",
        words="was evicted by its node",
        cause=_DISRUPTION,
        reasons=("Evicted",),
        source="kubelet/eviction/eviction_manager.go: synchronize",
    ),
    End(
        name="critical-pod",
        meaning="The node ended the pod to make room for a critical pod.",
        words="was preempted by its node",
        cause=_DISRUPTION,
        reasons=("Preempting",),
        source="kubelet/preemption/preemption.go",
    ),
    End(
        name="node-shutdown",
        meaning="The node shut down.",
        words="was ended with its node",
        cause=_DISRUPTION,
        reasons=("Terminated", "Shutdown"),
        source="kubelet/nodeshutdown/nodeshutdown_manager.go",
    ),
    End(
        name="node-lost",
        meaning="The node no longer answers.",
        words="was lost with its node",
        cause=_DISRUPTION,
        reasons=("NodeLost",),
        source="controller/util/node/controller_utils.go",
    ),
    End(
        name="preemption",
        meaning="The scheduler preempted the pod for one of higher priority.",
        words="was preempted",
        cause=_DISRUPTION,
        reasons=("PreemptionByScheduler",),
        disrupted=True,
        source="scheduler/framework/preemption/executor.go",
    ),
    End(
        name="taint",
        meaning="The node got a taint that the pod does not tolerate, as when it stops answering.",
        words="was evicted from its tainted node",
        cause=_DISRUPTION,
        reasons=("DeletionByTaintManager",),
        disrupted=True,
        source="controller/tainteviction/taint_eviction.go",
    ),
    End(
        name="device-taint",
        meaning="A device of the pod got a taint, as when it is broken.",
        words="was evicted from its tainted device",
        cause=_DISRUPTION,
        reasons=("DeletionByDeviceTaintManager",),
        disrupted=True,
        source="controller/devicetainteviction/device_taint_eviction.go",
    ),
    End(
        name="eviction",
        meaning="Somebody evicted the pod, as `kubectl drain` does.",
        words="was evicted",
        cause=_DISRUPTION,
        reasons=("EvictionByEvictionAPI",),
        disrupted=True,
        source="registry/core/pod/storage/eviction.go",
    ),
    End(
        name="node-gone",
        meaning="The node was removed from the cluster.",
        words="was deleted with its node",
        cause=_DISRUPTION,
        reasons=("DeletionByPodGC",),
        disrupted=True,
        source="controller/podgc/gc_controller.go",
    ),
    End(
        name="disruption",
        meaning="The cluster ended the pod for another reason, such as `TerminationByKubelet`.",
        words="was taken by the cluster",
        cause=_DISRUPTION,
        disrupted=True,
        source="kubelet/status/status_manager.go: mergePodStatus",
    ),
    End(
        name="deletion",
        meaning="Somebody deleted the pod.",
        words="was deleted",
        cause=_DISRUPTION,
        deleting=True,
        source="registry/core/pod/strategy.go",
    ),
)
"""Pods that the cluster or a person ended, whatever their program says then."""

_LOST_CONTAINERS = (
    End(
        name="container-unknown",
        meaning="The node restarted, or its runtime lost the container: 137 is no exit code here.",
        words="lost its container",
        cause=_DISRUPTION,
        container_reasons=("ContainerStatusUnknown",),
        source="kubelet/kubelet_pods.go; kubelet/status/status_manager.go",
    ),
    End(
        name="runtime-unknown",
        meaning="The runtime restarted with its node, and does not know how the container ended.",
        words="lost its container",
        cause=_DISRUPTION,
        container_reasons=("Unknown",),
        codes=(255,),
        source="containerd: internal/cri/server/helpers.go",
    ),
    End(
        name="restarted-in-place",
        meaning="A rule of a container restarted all containers of the pod in place.",
        words="was restarted in place",
        container_reasons=(RESTARTING_ALL,),
        source="kubelet/kubelet_pods.go",
    ),
)
"""Containers whose end nobody saw."""

EXITED = End(
    name="exit",
    meaning="The program ended by itself, with any other exit code.",
    source="kubelet/kubelet_pods.go: convertContainerStatus",
)

_EXITS = (
    End(
        name="out-of-memory",
        meaning="The kernel ended the container at its memory limit.",
        cause=policies.Cause.OUT_OF_MEMORY,
        container_reasons=(OOM_KILLED,),
        source="containerd: internal/cri/server/helpers.go",
    ),
    End(
        name="not-started",
        meaning="The runtime could not start the program.",
        container_reasons=("StartError", "ContainerCannotRun"),
        source="containerd: internal/cri/server/helpers.go",
    ),
    End(
        name="packages",
        meaning="The init container could not download packages.",
        cause=_INFRASTRUCTURE,
        codes=(exits.Exit.STORAGE_FAILED,),
        of_source=True,
        source="exit code 73",
    ),
    End(
        name="exit-asked",
        meaning="Somebody asked the program to end, as for maintenance: it asks to run again.",
        cause=_DISRUPTION,
        asks=True,
        codes=exits.ASKED_TO_END,
        source="exit codes 42 of TensorFlow and 76",
    ),
    End(
        name="exit-out-of-memory",
        meaning="The trainer ran out of memory.",
        cause=policies.Cause.OUT_OF_MEMORY,
        codes=(exits.Exit.OUT_OF_MEMORY,),
        source="exit code 77",
    ),
    End(
        name="exit-stalled",
        meaning="A step did not end in time.",
        cause=policies.Cause.STALL,
        codes=(exits.Exit.STALLED,),
        source="exit code 79",
    ),
    EXITED,
)
"""Programs that ended by themselves."""

TABLE = (*_OWN_LIMITS, *_REJECTIONS, *_TAKEN, *_LOST_CONTAINERS, *_EXITS)
"""In the order in which they are tried."""
