"""The spec of a TFParallelJob. The custom resource's schema and reference are generated from it.

Fields that Kubeflow's TFJob has keep their names and, if set, their meaning.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import alias_generators

from tfparallel_operator.api import (
    claim_templates,
    job_status,
    mesh_rules,
    policies,
    role,
    rules,
    spec_rules,
    trainer_rules,
    trainer_spec,
)
from tfparallel_trainer.contract import base, job_file, separate_training

MAX_REPLICAS = 5000
"""Most replicas of one role: the bound that lets the API server check costs of the rules."""


Role = role.Role
"""Keys of `tfReplicaSpecs`."""


Strategy = job_file.Strategy


class RestartPolicy(enum.StrEnum):
    """What a replica's failure leads to, as in TFJob."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(enum.StrEnum):
    """Which pods are deleted when the job has ended."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class GangScheduler(enum.StrEnum):
    """The scheduler that starts all pods of a job together or none."""

    COSCHEDULING = "Coscheduling"
    """The plugin of the scheduler-plugins."""
    VOLCANO = "Volcano"
    KUBERNETES = "Kubernetes"
    """The scheduler's own, behind feature gates: alpha in Kubernetes 1.36, beta from 1.37."""


class SuccessPolicy(enum.StrEnum):
    """Which workers decide about success when there is no chief."""

    DEFAULT = ""
    ALL_WORKERS = "AllWorkers"


class Network(enum.StrEnum):
    """Who may connect to the pods of a job."""

    ISOLATED = "Isolated"
    OPEN = "Open"


class ReplicaSpec(base.Model):
    """The replicas of one role."""

    replicas: Annotated[int, pydantic.Field(ge=1, le=MAX_REPLICAS)] = 1
    """Number of replicas."""

    min_replicas: Annotated[int, pydantic.Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Fewest workers that the job may be scaled to. With it, or maxReplicas, the replicas of Worker
    may change while the job runs."""

    max_replicas: Annotated[int, pydantic.Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Most workers that the job may be scaled to."""

    restart_policy: RestartPolicy | None = None
    """What happens after a replica fails. Always and OnFailure restart it, Never fails the job, and
    ExitCode restarts it for exit codes of 128 and more. Absent: as the strategy needs (see
    docs/explanation/strategies.md)."""

    devices: Annotated[int, pydantic.Field(ge=1, le=64)] | None = None
    """GPUs of each replica. The same as a limit of nvidia.com/gpu on the container tensorflow."""

    template: Annotated[dict[str, Any] | None, rules.Rules(preserve_unknown_fields=True)] = None
    """The pod template. Its container named tensorflow trains. With spec.trainer you may leave it
    out: then the shipped trainer image runs."""

    @property
    def pod_spec(self) -> Mapping[str, Any]:
        """The spec of the pod template; empty if the role has none."""
        return (self.template or {}).get("spec") or {}


T = TypeVar("T")
Misplaced = Annotated[
    T | None,
    rules.Rules(rules.never("this field belongs below spec.runPolicy: move it there")),
]
"""A field that users of TFJob put in the wrong place: refused with the remedy."""


Quantity = Annotated[int | str, rules.IntOrString()]


class SchedulingPolicy(base.Model):
    """Settings of gang scheduling."""

    min_available: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Minimum number of pods that start together; absent: all."""

    queue: Annotated[str, pydantic.Field(min_length=1, max_length=253)] | None = None
    """Volcano only: the queue; absent: default."""

    min_resources: (
        Annotated[dict[str, Quantity], pydantic.Field(min_length=1, max_length=16)] | None
    ) = None
    """Total resources that the cluster must have before a pod is scheduled, such as nvidia.com/gpu.
    Coscheduling and Volcano only."""

    priority_class: Annotated[str, pydantic.Field(min_length=1, max_length=253)] | None = None
    """PriorityClass of the pods whose template has none. With Volcano and Kubernetes, also of the
    PodGroup."""

    schedule_timeout_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Coscheduling only: seconds that a scheduled pod waits for the rest of its group."""


Manager = Annotated[str, pydantic.Field(max_length=253, pattern="^[-a-z0-9.]+/[-a-z0-9.]+$")]


class RunPolicy(base.Model):
    """Deadlines, retries and clean-up."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which pods the operator deletes when the job has ended: None, Running (those that have not
    ended) or All."""

    ttl_seconds_after_finished: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] | None = None
    """Seconds from the job's end until the operator deletes it; absent: never."""

    active_deadline_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds from its start after which the job fails; absent: no limit."""

    cleanup: Annotated[tuple[policies.CleanupStage, ...], pydantic.Field(max_length=8)] = ()
    """Further stages of the clean-up, after cleanPodPolicy. A stage can keep the pods of a failed
    job for a day, for example."""

    evaluator_grace_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 300
    """Seconds that an evaluator may run after the job has succeeded, for its last evaluation."""

    pending_deadline_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds that the pods that training needs may be pending in each attempt; absent: no
    limit."""

    stall_deadline_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds without a report of progress after which training counts as stalled, once it has
    reported; absent: no limit."""

    backoff_limit: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 3
    """Number of failures after which the operator restarts replicas. The next one fails the job.
    Disruptions do not count."""

    failure_policy: policies.FailurePolicy | None = None
    """What the operator does after a replica is lost, by role, exit code and cause. Absent: what
    the strategy and restartPolicy say."""

    out_of_memory: policies.OutOfMemory | None = None
    """How memory requests and limits grow after the kernel has killed a replica because it ran out
    of memory. They grow for all replicas of its role. Absent: they stay."""

    suspend: bool = False
    """If true, the operator deletes the job's pods. If set to false again, the job resumes."""

    scheduling_policy: SchedulingPolicy | None = None
    """Settings of gang scheduling. They need a gang scheduler: scheduling.gang, or the operator's
    --gang-scheduler."""

    scale_cooldown_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 60
    """Minimum seconds between the start of an attempt and the next scaling."""

    managed_by: Manager | None = None
    """The same as spec.managedBy, where TFJob has it. If you set both, they must be equal. Cannot
    change."""


TopologyKey = Annotated[str, pydantic.Field(min_length=1, max_length=317)]


class Scheduling(base.Model):
    """When the replicas start, and on which nodes."""

    gang: GangScheduler | None = None
    """The scheduler that starts all pods together or none: Coscheduling, Volcano or Kubernetes.
    Absent: with runPolicy.schedulingPolicy, the operator's --gang-scheduler; else each pod starts
    as soon as a node has room."""

    avoid_failed_nodes: bool = True
    """If true, new pods avoid nodes on which replicas were lost twice, such as by a broken device.
    They avoid at most three nodes, while they find others."""

    topology_keys: Annotated[tuple[TopologyKey, ...], pydantic.Field(max_length=8)] | None = None
    """Node labels that define proximity, such as topology.kubernetes.io/zone: pods that train
    together prefer nodes with equal values. Absent: as without scheduling; empty: no
    preference."""


ReplicaSpecs = Annotated[
    dict[Role, ReplicaSpec],
    pydantic.Field(min_length=1, max_length=len(Role)),
    spec_rules.ROLE_RULES,
]
"""Replicas by role."""


class Spec(base.Model):
    """The desired state of a TFParallelJob."""

    tf_replica_specs: ReplicaSpecs
    """The replicas by role: Chief (or Master), Worker, PS, Evaluator. With spec.trainer and PS, the
    operator adds a chief if you leave it out: like a worker, without devices."""

    strategy: Strategy | None = None
    """How the replicas train together. Absent: ParameterServer with servers, MultiWorkerMirrored
    with several training replicas, else Mirrored. Custom: the tf.distribute.Strategy that
    build_strategy returns. TPU: the TPU of one replica. ModelSplit: each device holds a part of the
    model, as mesh says."""

    mesh: Annotated[job_file.Mesh | None, rules.Rules(*mesh_rules.MESH_RULES)] = None
    """How the devices share the model. Strategy ModelSplit needs it, and no other takes it. The
    product of data, stage, spatial and tensor is the number of devices: replicas x devices."""

    trainer: Annotated[trainer_spec.Trainer | None, trainer_rules.TRAINER] = None
    """What the shipped trainer runs. Absent: the command of each template runs as it is."""

    on_separate_training: separate_training.OnSeparateTraining = (
        separate_training.OnSeparateTraining.STOP
    )
    """What happens if the replicas of a script train separate models, for example because it calls
    Keras' fit. Stop: the first step fails the job, with exit code 65. Continue: the job trains, and
    the log and the condition SeparateTraining say so."""

    volume_claim_templates: claim_templates.ClaimTemplates = ()
    """Claims that the operator creates before the pods: one for each template, which all replicas
    share. trainer.checkpoint.claim and trainer.volumes refer to them by the template's name. Cannot
    change."""

    persistent_volume_claim_retention_policy: claim_templates.RetentionPolicy = pydantic.Field(
        default_factory=claim_templates.RetentionPolicy
    )
    """How long the claims of volumeClaimTemplates live. Cannot change."""

    scheduling: Scheduling | None = None
    """When the replicas start, and on which nodes. Absent: each pod starts as soon as a node has
    room. With ModelSplit, pods whose devices exchange most prefer the same node, and all pods the
    same zone."""

    network: Network = Network.ISOLATED
    """Who may connect to the job's pods. Isolated: the job's pods alone, by a NetworkPolicy that
    does not restrict outgoing connections. Open: everybody. Cannot change."""

    host_network: bool = False
    """If true, pods use the host network, for example for RDMA. Each replica then listens on a port
    that no other job uses. Needs network Open. Cannot change."""

    managed_by: Manager | None = None
    """The controller that runs the job. Absent, or tfparallel.dev/operator: this operator. It
    ignores the jobs of other controllers, such as kueue.x-k8s.io/multikueue. Cannot change."""

    run_policy: RunPolicy = pydantic.Field(default_factory=RunPolicy)
    """Deadlines, retries and clean-up."""

    success_policy: SuccessPolicy = SuccessPolicy.DEFAULT
    """When a job without a chief succeeds: if worker 0 does, or with AllWorkers, if all workers
    do."""

    enable_dynamic_worker: bool = False
    """If true, a worker's TF_CONFIG lists only itself and the parameter servers, so that workers
    can be added or removed."""

    clean_pod_policy: Misplaced[str] = None
    """A trap: belongs below runPolicy."""

    ttl_seconds_after_finished: Misplaced[int] = None
    """A trap: belongs below runPolicy."""

    active_deadline_seconds: Misplaced[int] = None
    """A trap: belongs below runPolicy."""

    backoff_limit: Misplaced[int] = None
    """A trap: belongs below runPolicy."""


class Metadata(pydantic.BaseModel):
    """The part of an object's metadata that decisions need. Other fields are ignored."""

    model_config = pydantic.ConfigDict(
        extra="ignore",
        frozen=True,
        alias_generator=alias_generators.to_camel,
        populate_by_name=True,
    )

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = pydantic.Field(default_factory=dict)


class TFParallelJob(base.Model):
    """Trains a TensorFlow model on several replicas."""

    api_version: Literal["tfparallel.dev/v1alpha1"]
    kind: Literal["TFParallelJob"]
    metadata: Metadata
    spec: Annotated[Spec, spec_rules.SPEC_RULES]
    status: job_status.JobStatus = pydantic.Field(default_factory=job_status.JobStatus)
