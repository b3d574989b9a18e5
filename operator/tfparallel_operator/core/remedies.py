"""Remedies for jobs that wait or fail, by messages of Kubernetes and by exit codes. Pure.

The messages are those of the scheduler, the kubelet, the API server, Kueue and the container
runtime. They appear in conditions, container states and Events.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from tfparallel_trainer.contract import exits

LONGEST_WORDS = 600
"""Maximum length of a message of another program; a longer one is cut."""
_SEARCHED_WORDS = 8_192
"""How many characters of a message are searched. No message of Kubernetes is longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """A problem and its remedy."""

    problem: str
    remedy: str = ""
    """The remedy; empty: it is unknown, or the problem contains it."""

    @property
    def sentence(self) -> str:
        """The problem, shortened so that the remedy can follow it."""
        return f"{shorten(self.problem).rstrip('.')}." if self.remedy else self.problem

    @property
    def message(self) -> str:
        """The problem and the remedy as one message."""
        return f"{self.sentence} {self.remedy}" if self.remedy else self.problem


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """The remedy for messages that match a pattern."""

    pattern: re.Pattern[str]
    sentence: str
    """The remedy, in which names in braces stand for the pattern's groups."""


def find(message: str) -> str:
    """Return the remedy for a message of Kubernetes; empty: unknown."""
    for remedy in TABLE:
        match = remedy.pattern.search(message, 0, _SEARCHED_WORDS)
        if match is not None:
            return remedy.sentence.format(**match.groupdict())
    return ""


def find_for_exit(code: int, reason: str, message: str) -> str:
    """Return the remedy for the end of a container. A code below 0 is not an exit.

    A termination message already contains the remedy, except for an error of the user's module.
    """
    if code < 0 or reason in _NO_PROGRAM:
        return find(f"{reason}: {message}")
    if reason == "OOMKilled":
        return OUT_OF_MEMORY
    has_remedy = message and code != exits.Exit.USER_ERROR
    return "" if has_remedy else BY_EXIT_CODE.get(code, "")


def is_held_by_others(message: str) -> bool:
    """Whether a pod waits only for the rest of its gang, whose pods say why."""
    return _HELD_BY_OTHERS.search(message) is not None


def explain(problem: str) -> Advice:
    """Return the problem in a message of Kubernetes, with the remedy if it is known."""
    return Advice(problem, find(problem))


def distinguish(candidates: Iterable[Advice]) -> list[Advice]:
    """Return why pods wait: for each remedy, the first problem.

    If a pod waits only for other pods, it counts only if none of them says why.
    """
    listed = list(candidates)
    by_remedy: dict[str, Advice] = {}
    for advice in [entry for entry in listed if not is_held_by_others(entry.problem)] or listed:
        by_remedy.setdefault(advice.remedy, advice)
    return list(by_remedy.values())


def join(candidates: Iterable[Advice]) -> str:
    """Return why pods wait as sentences, each remedy once."""
    *first, last = (advice.message for advice in distinguish(candidates))
    return " ".join([*(f"{message.rstrip('.')}." for message in first), last])


def shorten(text: str) -> str:
    """Return a message on one line, cut if it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_WORDS else f"{line[: LONGEST_WORDS - 1]}…"


def without_preemption(message: str) -> str:
    """Return the scheduler's message without the part about preemption."""
    return _PREEMPTION.sub("", message)


OUT_OF_MEMORY = (
    "Raise resources.limits.memory of the role, lower trainer.globalBatchSize, or set"
    " runPolicy.outOfMemory to raise the limit after each loss."
)

_NO_PROGRAM = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of containers whose program did not start. Their message is that of the runtime."""

_PREEMPTION = re.compile(r"[,.]? ?(?:no new claims to deallocate, )?preemption: .*")

_HELD_BY_OTHERS = re.compile(r"optimistic rejection|rejection in Unreserve|enough sibling pods")
"""The message of the scheduler-plugins."""

_CLAIM = r'persistentvolumeclaim "(?P<name>[^"]+)"'
_NO_IMAGE = r"(?:ErrImagePull|ImagePullBackOff|Failed to pull)"
_MORE = ".{0,1000}"
"""A pattern for the text between two words, for example a long reference to an image."""
_NAMED = r'"?(?P<name>[\w./:@-]+)"?'


_ROWS = {
    # Claims: the scheduler looks at them before it looks at nodes.
    rf"{_CLAIM} not found": (
        "Create the claim {name} in the namespace of the job, or correct its name in the job."
    ),
    rf"{_CLAIM} is being deleted": (
        "Wait until the claim {name} is gone and create it again, or name another claim."
    ),
    # The words of `waits` about a claim that has no volume.
    rf"{_CLAIM} names no StorageClass": (
        "Delete the claim {name} and create it with a storageClassName that"
        " `kubectl get storageclass` lists, or have a default one set."
    ),
    rf"{_CLAIM} is Lost": (
        "Delete the claim {name} and create it again: what its volume held is gone."
    ),
    rf'{_CLAIM}: {_MORE}storageclass\S{{0,40}} "(?P<storage_class>[^"]+)" not found': (
        "Delete the claim {name} and create it with a storageClassName that"
        " `kubectl get storageclass` lists: {storage_class} does not exist."
    ),
    rf"{_CLAIM}: {_MORE}(?i:access ?modes?|MULTI_NODE|multi.?writer)": (
        "Delete the claim {name} and create it with accessModes that its storage class offers,"
        " such as ReadWriteOnce, or with another storageClassName."
    ),
    rf"{_CLAIM}: {_MORE}no storage class is set": (
        "Create a volume that fits the claim {name}, or create the claim with a"
        " storageClassName that `kubectl get storageclass` lists."
    ),
    rf"{_CLAIM}: ExternalProvisioning": (
        "Wait a minute: then see that the provisioner of the claim's storage class runs, with"
        " `kubectl describe pvc {name}`."
    ),
    rf"{_CLAIM}: (?:ProvisioningFailed|FailedBinding)": (
        "See what the provisioner reports, with `kubectl describe pvc {name}`, and correct the"
        " claim or its storage class."
    ),
    r"unbound immediate PersistentVolumeClaims": (
        "Find out why the claim has no volume with `kubectl describe pvc`: it often names a"
        " storage class that does not exist."
    ),
    r"didn't find available persistent volumes to bind": (
        "Create a volume that fits the claim, or choose a storage class that provides volumes."
    ),
    r"volume node affinity conflict|didn't match PersistentVolume's node affinity": (
        "The claim's volume is in another zone or on another node: remove the job's selector,"
        " or use a storage class with ReadWriteMany."
    ),
    r"Multi-Attach error": (
        "The volume is on another node: use a storage class with ReadWriteMany for replicas on"
        " several nodes."
    ),
    # Nodes.
    r"Insufficient nvidia\.com/gpu": (
        "Lower devices of the role to what a node has free, wait for other jobs, or add nodes"
        " with GPUs."
    ),
    r"Insufficient (?P<name>cpu|memory|ephemeral-storage)": (
        "Lower resources.requests.{name} of the role, wait for other jobs, or add nodes."
    ),
    r"Insufficient (?P<name>[\w-]+(?:[./][\w-]+)*)": (
        "Ask for less of {name}, wait for other jobs, or add nodes that have it."
    ),
    r"Too many pods": "Wait for other pods to end, or add nodes.",
    r"didn't match Pod's node affinity/selector": (
        "Correct nodeSelector or nodeAffinity of the role, or label a node:"
        " `kubectl get nodes --show-labels` shows the labels."
    ),
    r"didn't match pod (?:anti-)?affinity|didn't satisfy existing pods anti-affinity": (
        "Relax podAffinity or podAntiAffinity of the role, or add nodes."
    ),
    r"didn't match pod topology spread": (
        "Relax topologySpreadConstraints of the role, or add nodes."
    ),
    r"didn't have free ports": (
        "Wait until the job that has the ports ends, or turn hostNetwork off."
    ),
    r"untolerated taint": (
        "Add a toleration for the taint to the role, or remove the taint with"
        " `kubectl taint nodes`."
    ),
    r"node\(s\) were unschedulable": (
        "Let pods run on the nodes again with `kubectl uncordon NODE`, or add nodes."
    ),
    r"no nodes available to schedule pods": "Add nodes to the cluster, or wait for them.",
    r"does not know PodGroups of": (
        "Install the gang scheduler, or change scheduling.gang: the operator tries again by itself."
    ),
    r"same priority as the pod group's priority": (
        "Give the templates of all roles the same priorityClassName, or set"
        " runPolicy.schedulingPolicy.priorityClass instead."
    ),
    rf"{_HELD_BY_OTHERS.pattern}|\b[Gg]ang\b|[Pp]od ?[Gg]roup": (
        "The replicas start together: free room for all of them, lower their number, or remove"
        " scheduling.gang."
    ),
    r"SchedulingGated": (
        "Wait for the controller that set the pod's scheduling gate, or remove the gate from"
        " the template."
    ),
    # Quotas, rights and admission.
    rf'failed calling webhook "(?P<name>[^"]+)"{_MORE}x509': (
        "Have an administrator renew the certificate of webhook {name}, or correct caBundle in its"
        " configuration."
    ),
    r'failed calling webhook "(?P<name>[^"]+)"': (
        "Have an administrator repair webhook {name}, or delete its configuration: `kubectl get"
        " mutatingwebhookconfigurations,validatingwebhookconfigurations` lists them."
    ),
    r"not the job's own have names that it needs: (?P<names>[\w/ -]+)": (
        "Delete them: `kubectl delete {names}`. Or give the job another name."
    ),
    r"objects of the TFJob of this name have names": (
        "Delete the TFJob of the job's name: `kubectl delete tfjob`."
    ),
    r"so that the operator does not follow them: (?P<names>[\w/ -]+)": (
        "Set the label back, or delete them: `kubectl delete {names}`. A mutating policy may have"
        " changed them."
    ),
    r"finalizer (?P<name>[\w./,-]+) keeps (?P<object>[\w./-]+)": (
        "Have the controller of finalizer {name} remove it. If that controller is gone, remove the"
        " finalizer: `kubectl edit {object}`."
    ),
    r"node (?P<name>[\w.-]+) has not ended": (
        "Repair node {name}, or delete it: `kubectl delete node {name}`. The operator forces"
        " pods of dead nodes alone."
    ),
    r"(?:is|are) not gone yet": ("Wait: the job continues once the names are free."),
    rf"what the cluster adds {_MORE} makes the pod invalid": (
        "Set resources of the role, or have the LimitRange or webhook corrected:"
        " `kubectl describe limitrange` shows defaults."
    ),
    r"(?:maximum|minimum) \S+ usage per (?:Container|Pod)|max limit to request ratio per": (
        "Change resources of the role, or have the LimitRange changed: `kubectl describe"
        " limitrange` shows its bounds."
    ),
    r"unable to validate against any security context constraint": (
        "Clear securityContext by jobs.podDefaults of the chart, or grant the service account an"
        " SCC: `oc adm policy add-scc-to-user nonroot-v2 -z NAME`."
    ),
    r"exceeded quota: (?P<name>[\w.-]+)": (
        "Ask for less, delete jobs that have ended, or have the quota raised:"
        " `kubectl describe quota {name}` shows its use."
    ),
    r"failed quota: (?P<name>[\w.-]+)": (
        "Set resources of the role, which the quota {name} demands of each container."
    ),
    rf"no PriorityClass with name {_NAMED} was found": (
        "Create the PriorityClass {name}, or correct priorityClassName of the role."
    ),
    r'serviceaccount "(?P<name>[^"]+)" not found': (
        "Create the service account {name}, or correct serviceAccountName of the role."
    ),
    r'RuntimeClass "(?P<name>[^"]+)" not found': (
        "Create the RuntimeClass {name}, or correct runtimeClassName of the role."
    ),
    r"because it is being terminated": "Create the job in another namespace: this one is deleted.",
    r"violates PodSecurity": (
        "Set the securityContext that the message names, or use a namespace with a lower Pod"
        " Security level."
    ),
    # Kueue.
    r"does not know Workloads of": (
        "Install Kueue, or remove the label kueue.x-k8s.io/queue-name: the operator tries again by"
        " itself."
    ),
    r"LocalQueue (?P<name>\S+) doesn't exist": (
        "Create the LocalQueue {name} in the namespace, or correct the label"
        " kueue.x-k8s.io/queue-name."
    ),
    r"ClusterQueue (?P<name>\S+) (?:doesn't exist|not found)": (
        "Ask the administrator for the ClusterQueue {name}, or choose another queue."
    ),
    r"namespace doesn't match ClusterQueue selector": (
        "Ask the administrator to let the namespace use the ClusterQueue, or choose another queue."
    ),
    r"Exceeded the PodsReady timeout": (
        "See why its pods did not start in time: their images, claims and nodes. Kueue admits"
        " the job again by itself."
    ),
    r"spec\.active is false|workload is deactivated": (
        "Set spec.active of the job's Workload to true, or delete the job and create it again."
    ),
    r"(?:ClusterQueue|LocalQueue)(?: \S+)? is (?:inactive|stopped)": (
        "Ask the administrator to start the queue, or choose another queue."
    ),
    r"insufficient unused quota": (
        "Wait until other jobs of the queue end, ask for less, or have its quota raised."
    ),
    r"insufficient quota|resource (?P<name>\S+) unavailable in ClusterQueue": (
        "The queue never has as much: ask for less, or have its quota raised."
    ),
    # Autoscalers.
    r"the server could not find the requested resource \(get pods\.metrics\.k8s\.io\)": (
        "Install metrics-server, which measures what pods use, or delete the autoscaler."
    ),
    r"missing request for (?P<name>cpu|memory)": (
        "Set resources.requests.{name} of the role: the autoscaler compares the use with it."
    ),
    r"no metrics returned from resource metrics API|did not receive metrics": (
        "Wait a minute: metrics-server has not measured the pods yet. If it stays so, look at its"
        " log."
    ),
    # Images.
    r"InvalidImageName": "Correct the image's name in the job: REGISTRY/NAME:TAG.",
    r"ErrImageNeverPull": ("Bring the image to the node, or set imagePullPolicy to IfNotPresent."),
    rf"{_NO_IMAGE}{_MORE}(?:(?i:authoriz)|denied|forbidden)": (
        "Correct the image's name, or add a registry's Secret to imagePullSecrets of the role."
    ),
    rf"{_NO_IMAGE}{_MORE}(?:x509|certificate)": (
        "Have the nodes trust the registry's certificate, or use a registry that they trust."
    ),
    rf"{_NO_IMAGE}{_MORE}(?:toomanyrequests|429 Too Many Requests)": (
        "Wait until the registry answers again, or add a Secret of it to imagePullSecrets of"
        " the role: it limits how often each user pulls."
    ),
    rf"{_NO_IMAGE}{_MORE}(?:no such host|dial tcp|i/o timeout)": (
        "Check the name of the image, which begins with its registry. If it is right, let the node"
        " reach that registry, or use another."
    ),
    _NO_IMAGE: (
        "Push the image to its registry or bring it to the node, or correct its name in the job."
    ),
    # What a container needs before it starts.
    r'references non-existent (?:config|secret) key: "?(?P<name>[\w./-]+)': (
        "Add the key {name} to the ConfigMap or Secret, or correct the key in the job."
    ),
    r"couldn't find key (?P<name>\S+) in (?P<kind>ConfigMap|Secret)": (
        "Add the key {name} to the {kind}, or correct the key in the job."
    ),
    r'configmap "(?P<name>[^"]+)" not found': (
        "Create the ConfigMap: `kubectl create configmap {name} --from-file=FILE`, or correct"
        " its name in the job."
    ),
    r'secret "(?P<name>[^"]+)" not found': (
        "Create the Secret: `kubectl create secret generic {name} --from-literal=KEY=VALUE`, or"
        " correct its name in the job."
    ),
    r"container has runAsNonRoot and image will run as root": (
        "Set runAsUser in the role's securityContext, or use an image with another user."
    ),
    r"executable file not found|no such file or directory": (
        "Correct command of the container, or use an image that has the program."
    ),
    r"permission denied": "Give the user of the container the right to the file or volume.",
    r"Argument list too long": "Shorten command, args and env of the container.",
    r"FailedMount|FailedAttachVolume|timed out waiting for the condition": (
        "Look at the volume: `kubectl describe pod` shows what its driver reports."
    ),
    r"FailedCreatePodSandBox": (
        "Look at the node's network plugin: `kubectl describe pod` shows what it reports."
    ),
    # Ends that no program chose.
    r"low on resource: pids": "Start fewer processes and threads, or use nodes that permit more.",
    r"low on resource: inodes": "Write fewer files to the node's disk, or write to a volume.",
    r"low on resource: (?P<name>memory|ephemeral-storage)": (
        "Set resources.requests.{name} of the role to what it uses, so that a node has room."
    ),
    r"\bPreempt(?:ed|ing)\b": (
        "Raise the priority of the job, or wait for the jobs that displaced it."
    ),
    r"of the operator (?:acts on|watches) this job": (
        "Have each installation watch namespaces of its own (watchNamespaces), or uninstall one."
    ),
    # The operator's words of a deadline that passed; what pods waited for comes first.
    r"runPolicy\.stallDeadlineSeconds": (
        "Read what the coordinator wrote last, or raise runPolicy.stallDeadlineSeconds if its"
        " steps take so long."
    ),
    r"runPolicy\.activeDeadlineSeconds": (
        "Raise runPolicy.activeDeadlineSeconds, or train for fewer epochs."
    ),
}
"""Rows in the order in which they are tried. A cause comes before its consequences."""

TABLE = tuple(Remedy(re.compile(pattern), sentence) for pattern, sentence in _ROWS.items())

BY_EXIT_CODE: Mapping[int, str] = {
    exits.TENSORFLOW_RESTART: "Nothing to do: the program resumes from its checkpoint.",
    exits.Exit.USER_ERROR: "Correct what the log's last lines name.",
    exits.Exit.NON_FINITE: "Lower the learning rate or clip gradients, or set"
    " trainer.onNonFiniteLoss to Continue.",
    exits.Exit.VERIFICATION_FAILED: "Do what the log's last line says: the job would not train what"
    " one process trains.",
    exits.Exit.INTERNAL_ERROR: "Report the log's traceback as a bug.",
    exits.Exit.DEVICE_FAILED: "Look at the node's devices and driver if it happens again there.",
    exits.Exit.STORAGE_FAILED: "See that the claim has free space, and that the source of the data"
    " answers.",
    exits.Exit.START_TIMEOUT: "See why the peer that the log names does not start, or raise"
    " trainer.startTimeoutSeconds.",
    exits.Exit.PEER_LOST: "Look for the replica that ended first: its exit is the cause.",
    exits.Exit.PREEMPTED: "Nothing to do: the next attempt resumes from the checkpoint.",
    exits.Exit.OUT_OF_MEMORY: OUT_OF_MEMORY,
    exits.Exit.BAD_CONFIGURATION: "Correct the field that the log's last line names.",
    exits.Exit.STALLED: "Read the stacks in the log, or raise trainer.stepTimeoutSeconds if a step"
    " needs more time.",
    126: "Make the command executable, or start it with its interpreter.",
    127: "Correct command of the container, or use an image that has the program.",
    132: "Use an image whose TensorFlow was built for the node's processor.",
    134: "Read the last lines of the log: the program aborted itself.",
    137: OUT_OF_MEMORY,
    139: "The program crashed in native code: look for a library that does not fit TensorFlow's"
    " version.",
}
"""Remedies by exit code: those of the trainer's contract, of shells and of signals."""

_RESTARTED_NODE = "See whether the node restarted: `kubectl describe node` shows its Events."

BY_END: Mapping[str, str] = {
    "pod-disk-limit": "Raise resources.limits.ephemeral-storage of the role's containers, or write"
    " to a volume.",
    "container-disk-limit": "Raise resources.limits.ephemeral-storage of the container that the"
    " message names, or let it write to a volume.",
    "empty-dir-limit": "Raise sizeLimit of the volume that the message names, or write less to it."
    " For tfparallel-shm, mount a volume of your own at /dev/shm.",
    "pod-deadline": "Remove activeDeadlineSeconds from the template of the role, or raise it."
    " runPolicy.activeDeadlineSeconds bounds the whole job.",
    "rejected-pressure": "Free disk and memory on the node, or keep pods off it with"
    " `kubectl cordon NODE`.",
    "rejected-resources": "Wait for other pods of the node to end, or add nodes.",
    "rejected-devices": "See that the device plugin of the node runs: `kubectl describe node` lists"
    " what the node offers.",
    "rejected-topology": "Ask for fewer CPUs and devices in one pod, or relax the node's topology"
    " policy.",
    "rejected-feature": "Remove from the template what the message names, or choose nodes that"
    " permit it.",
    "rejected-volumes": "Use fewer volumes, or add nodes.",
    "preemption": "Raise the priority of the job, or wait for the jobs that displaced it.",
    "taint": "See why the node was tainted: `kubectl describe node`.",
    "device-taint": "See why the device was tainted: `kubectl get resourceslices`.",
    "container-unknown": _RESTARTED_NODE,
    "runtime-unknown": _RESTARTED_NODE,
    "restarted-in-place": "Remove restartPolicyRules from the template: the operator restarts"
    " replicas.",
}
"""Remedies by the way in which a pod ended. The keys are names of `ends.TABLE`."""
