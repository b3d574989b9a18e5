"""Every name that is written to a cluster: group, labels, ports, reasons. One comment each."""

import enum

GROUP = "tfparallel.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TFParallelJob"
PLURAL = "tfparalleljobs"
SINGULAR = "tfparalleljob"
SHORT_NAME = "tfpj"

CONTAINER = "tensorflow"
"""The container of a template that trains; the others are sidecars."""

SOURCE_CONTAINER = "tfparallel-source"
"""The init container that fetches a job's code and packages."""

PORT_NAME = "tfjob-port"
"""The container port that the TensorFlow server of a replica listens on, as TFJob names it."""

DEFAULT_PORT = 2222

GPU_RESOURCE = "nvidia.com/gpu"
"""The resource that `devices` of a replica stands for."""

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "tfparallel-operator"

LABEL_JOB = f"{GROUP}/job-name"
LABEL_ROLE = f"{GROUP}/replica-role"
"""Lower-case role: chief, master, worker, ps, evaluator."""

LABEL_INDEX = f"{GROUP}/replica-index"
LABEL_ATTEMPT = f"{GROUP}/attempt"
"""The job's attempt, from 1: grows when all replicas are restarted together."""

LABEL_REPLICA_ATTEMPT = f"{GROUP}/replica-attempt"
"""The replica's restarts within the job's attempt, from 0: grows when it is restarted alone."""

LABEL_MESH_GROUP = f"{GROUP}/mesh-group"
"""With ModelSplit: pods whose devices share layers (tensor, spatial), where one has too few."""

LABEL_MESH_PIPELINE = f"{GROUP}/mesh-pipeline"
"""With ModelSplit: pods that hold the model together, once for each part of the batch."""

LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
"""Kueue's label of a job: the LocalQueue that it waits in."""

LABEL_WORKLOAD_PRIORITY = "kueue.x-k8s.io/priority-class"
"""Kueue's label of a job: its WorkloadPriorityClass."""

LABEL_JOB_UID = "kueue.x-k8s.io/job-uid"
"""Kueue's label of a Workload: the uid of the job that it stands for."""

LABEL_POD_SET = "kueue.x-k8s.io/podset"
"""Kueue's label of a pod: the pod set of the Workload that it was admitted with."""

ANNOTATION_WORKLOAD = "kueue.x-k8s.io/workload"
"""Kueue's annotation of a pod: the Workload that it was admitted with."""

ANNOTATION_RESOURCES = f"{GROUP}/resources"
"""Our annotation of a Workload: a hash of the resources that its pods ask for."""

OF_WORKLOADS = "kueue.x-k8s.io"
"""The group of the class of a Workload's priority: a WorkloadPriorityClass."""

OF_PODS = "scheduling.k8s.io"
"""The group of the class of a Workload's priority: the PriorityClass of its pods."""

TOPOLOGY_GATE = "kueue.x-k8s.io/topology"
"""Kueue's scheduling gate: taken off once Kueue has written the pod's place into it."""

ANNOTATION_CONTENT = f"{GROUP}/content"
"""Fingerprint of what a job's ConfigMap was made from: one that differs is written again."""

ANNOTATION_AGENT = f"{GROUP}/agent"
"""Fingerprint of what a pod with an agent was built from: only its equal restarts in place."""

ANNOTATION_INSTALLATION = f"{GROUP}/installation"
"""Which installation of the operator acts on a job: it wrote the job's ConfigMap."""

ANNOTATION_QUESTION = f"{GROUP}/installation-question"
"""Which other installation asks, or has asked, whether that one still lives, and when."""

CONTROLLER = f"{GROUP}/operator"
"""This operator, as spec.managedBy and Events name it."""

FIELD_MANAGER = "tfparallel-operator"
PROGRESS_FIELD_MANAGER = "tfparallel-progress"
"""Owns `status.progress`, `placement`, `verification` and `separateTraining`, which reports tell,
and nothing else, so that reports and decisions never fight over a field."""


class ConditionType(enum.StrEnum):
    """Types of `status.conditions`; `reasons` says what each means."""

    RESUMABLE = "Resumable"
    SPEC_INVALID = "SpecInvalid"
    SUSPENDED = "Suspended"
    ADMITTED = "Admitted"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    TRAINING_STALLED = "TrainingStalled"
    SEPARATE_TRAINING = "SeparateTraining"
    EXCEEDS_MEMORY = "ExceedsMemory"
    CREATION_REFUSED = "CreationRefused"
    CONTESTED = "Contested"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class State(enum.StrEnum):
    """The one word for `kubectl get`, derived from the conditions."""

    PENDING = "Pending"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Activity(enum.StrEnum):
    """What a job does; each second since its creation belongs to one activity."""

    QUEUED = "queued"
    """The job waits for its queue's quota, or for the operator to start it."""
    SCHEDULING = "scheduling"
    """Not every replica has a node."""
    PULLING = "pulling"
    """Nodes pull images, mount volumes and fetch sources."""
    STARTING = "starting"
    """Processes start, read data and trace the first step."""
    TRAINING = "training"
    """Steps that no earlier attempt has made."""
    INPUT_WAIT = "inputWait"
    """Steps wait for data."""
    EVALUATING = "evaluating"
    """The model is evaluated, and training waits."""
    CHECKPOINTING = "checkpointing"
    """A checkpoint is copied or written, and training waits."""
    RESTARTING = "restarting"
    """From a loss to the first step after it."""
    RECOMPUTING = "recomputing"
    """Steps that an earlier attempt had made, and that no checkpoint has."""
    SUSPENDED = "suspended"
    """The job is suspended, or had failed until its spec was corrected."""


class EventAction(enum.StrEnum):
    """What the operator does for the cause of an Event: its field `action`."""

    RECONCILE = "Reconcile"
    RESTART_ALL = "RestartAllReplicas"
    RESTART_REPLICA = "RestartReplica"
    RESTART_WITH_CHIEF = "RestartWithChief"
    """The chief runs again, and the lost replica, if one was lost; the others train on."""


class Reason(enum.StrEnum):
    """Reasons of conditions and Events; `reasons` says what each means."""

    JOB_STARTED = "JobStarted"
    REPLICAS_RUNNING = "ReplicasRunning"
    REPLICAS_PENDING = "ReplicasPending"
    REPLICA_FAILED = "ReplicaFailed"
    REPLICA_LOST = "ReplicaLost"
    RESTART_POLICY_IGNORED = "RestartPolicyIgnored"
    VERIFICATION_FAILED = "VerificationFailed"
    SEPARATE_MODELS = "SeparateModels"
    MODEL_TOO_LARGE = "ModelTooLarge"
    SOURCE_FAILED = "SourceFailed"
    HUNG_AGAIN = "HungAgain"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    FAILURE_POLICY = "FailurePolicy"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PENDING_DEADLINE_EXCEEDED = "PendingDeadlineExceeded"
    STALL_DEADLINE_EXCEEDED = "StallDeadlineExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    PRIORITY_CLASS_NOT_FOUND = "PriorityClassNotFound"
    TOO_MANY_REQUESTS = "TooManyRequests"
    SERVER_UNAVAILABLE = "ServerUnavailable"
    ADMISSION_DENIED = "AdmissionDenied"
    DEFAULTS_CONFLICT = "DefaultsConflict"
    JOB_RESTRICTED = "JobRestricted"
    OTHER_INSTALLATION = "OtherInstallation"
    HOST_PORTS_TAKEN = "HostPortsTaken"
    GANG_SCHEDULER_NOT_INSTALLED = "GangSchedulerNotInstalled"
    JOB_QUEUED = "JobQueued"
    JOB_ADMITTED = "JobAdmitted"
    JOB_EVICTED = "JobEvicted"
    KUEUE_NOT_INSTALLED = "KueueNotInstalled"
    REPLICAS_CREATED = "ReplicasCreated"
    POD_FORCED = "PodForced"
    NODE_AVOIDED = "NodeAvoided"
    NODE_RELEASED = "NodeReleased"
    CHIEF_SUCCEEDED = "ChiefSucceeded"
    WORKERS_SUCCEEDED = "WorkersSucceeded"
    JOB_SUSPENDED = "JobSuspended"
    JOB_RESUMED = "JobResumed"
    REPLICAS_SCALED = "ReplicasScaled"
    JOB_FINISHED = "JobFinished"
    INVALID_SPEC = "InvalidSpec"
    STATUS_REFUSED = "StatusRefused"
    STATUS_UNREADABLE = "StatusUnreadable"
    SPEC_CORRECTED = "SpecCorrected"
    INVALID_TEMPLATE = "InvalidTemplate"
    NAME_CONFLICT = "NameConflict"
    NAME_HELD = "NameHeld"
    DELETION_STUCK = "DeletionStuck"
    CHECKPOINT_CONFIGURED = "CheckpointConfigured"
    NO_CHECKPOINT = "NoCheckpoint"
