"""The spec of a TFParallelJob. The custom resource's schema and reference are generated from it.

Fields that Kubeflow's TFJob has keep their names and, if set, their meaning.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import alias_generators

from tfparallel_operator.api import (
    claims,
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


class Strategy(enum.StrEnum):
    """How the replicas train together."""

    MIRRORED = "Mirrored"
    MULTI_WORKER_MIRRORED = "MultiWorkerMirrored"
    PARAMETER_SERVER = "ParameterServer"
    MODEL_SPLIT = "ModelSplit"
    CUSTOM = "Custom"
    TPU = "TPU"


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
    """Who starts the pods of a job together or not at all."""

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
    """Always and OnFailure run a failed replica again, Never fails the job, ExitCode runs it again
    for exit codes of 128 and more. Absent: as the strategy needs (see
    docs/explanation/strategies.md)."""

    devices: Annotated[int, pydantic.Field(ge=1, le=64)] | None = None
    """GPUs of each replica: short for a limit of nvidia.com/gpu on the container tensorflow."""

    template: Annotated[dict[str, Any] | None, rules.Rules(preserve_unknown_fields=True)] = None
    """The pod template; its container named tensorflow trains. May be left out with spec.trainer:
    then the shipped trainer image runs."""

    @property
    def pod_spec(self) -> Mapping[str, Any]:
        """What the template says of the pod; empty where it says nothing."""
        return (self.template or {}).get("spec") or {}


T = TypeVar("T")
Misplaced = Annotated[
    T | None,
    rules.Rules(rules.never("this field belongs below spec.runPolicy: move it there")),
]
"""A field where people of TFJob write it by mistake: refused with the remedy."""


Quantity = Annotated[int | str, rules.IntOrString()]


class SchedulingPolicy(base.Model):
    """How the pods of the job start together."""

    min_available: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """How many pods start together or not at all; absent: all."""

    queue: Annotated[str, pydantic.Field(min_length=1, max_length=253)] | None = None
    """Volcano's queue; absent: default. The other schedulers have none."""

    min_resources: (
        Annotated[dict[str, Quantity], pydantic.Field(min_length=1, max_length=16)] | None
    ) = None
    """What the cluster must have in total before a pod is placed, by resource, such as
    nvidia.com/gpu. Not with Kubernetes."""

    priority_class: Annotated[str, pydantic.Field(min_length=1, max_length=253)] | None = None
    """PriorityClass of the pods whose template has none, and of the PodGroup of Volcano and
    Kubernetes."""

    schedule_timeout_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """How long a pod that has a place waits for the others before it gives it up, with
    Coscheduling."""


Manager = Annotated[str, pydantic.Field(max_length=253, pattern="^[-a-z0-9.]+/[-a-z0-9.]+$")]


class RunPolicy(base.Model):
    """How long the job may run, how often it is retried, and what is left of it."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Which pods are deleted when the job has ended: None, Running (those that have not ended) or
    All."""

    ttl_seconds_after_finished: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] | None = None
    """Seconds after its end that the job is deleted; absent: never."""

    active_deadline_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds from the start after which the job fails; absent: no limit."""

    cleanup: Annotated[tuple[policies.CleanupStage, ...], pydantic.Field(max_length=8)] = ()
    """Further stages of the clean-up, after cleanPodPolicy. A stage can keep the pods of a failed
    job for a day, for example."""

    evaluator_grace_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 300
    """How long an evaluator may go on after the job's success, for its last evaluation."""

    pending_deadline_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds that the pods which training needs may wait until they run, in each attempt; absent:
    no limit."""

    stall_deadline_seconds: Annotated[int, pydantic.Field(ge=1, le=2**31 - 1)] | None = None
    """Seconds without a report of progress after which training that has reported counts as
    stalled; absent: no limit."""

    backoff_limit: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 3
    """How many failures lead to a restart; one more fails the job. Disruptions do not count."""

    failure_policy: policies.FailurePolicy | None = None
    """What the loss of a replica leads to, by role, exit code and cause. Absent: as the strategy
    and restartPolicy say."""

    out_of_memory: policies.OutOfMemory | None = None
    """How requests and limits grow when the kernel ends a replica that lacks memory. They grow for
    all replicas of its role. Absent: they stay."""

    suspend: bool = False
    """True stops the job: its pods are deleted until it is set to false."""

    scheduling_policy: SchedulingPolicy | None = None
    """How the pods of the job start together. It needs a gang scheduler: scheduling.gang, or the
    operator's --gang-scheduler."""

    scale_cooldown_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 60
    """How long training runs at least before its workers are scaled."""

    managed_by: Manager | None = None
    """As spec.managedBy, for TFJob's place. With both, they must be equal. Cannot change."""


TopologyKey = Annotated[str, pydantic.Field(min_length=1, max_length=317)]


class Scheduling(base.Model):
    """When and where the scheduler puts the replicas."""

    gang: GangScheduler | None = None
    """Who starts all pods together or not at all: Coscheduling, Volcano or Kubernetes.
    Absent: pods start as places become free, unless runPolicy.schedulingPolicy is given; then
    the operator's --gang-scheduler."""

    topology_keys: Annotated[tuple[TopologyKey, ...], pydantic.Field(max_length=8)] | None = None
    """Labels of nodes that say what is near, such as topology.kubernetes.io/zone: pods that train
    together prefer nodes with equal values. Absent: as without scheduling; empty: no
    preference."""


ReplicaSpecs = Annotated[
    dict[Role, ReplicaSpec],
    pydantic.Field(min_length=1, max_length=len(Role)),
    spec_rules.ROLE_RULES,
]
"""Replicas by role."""


class Spec(base.Model):
    """What a TFParallelJob asks for."""

    tf_replica_specs: ReplicaSpecs
    """The replicas by role: Chief (or Master), Worker, PS, Evaluator. With spec.trainer and PS, a
    chief that is left out is added: like a worker, without devices."""

    strategy: Strategy | None = None
    """How the replicas train together. Absent: ParameterServer with servers, MultiWorkerMirrored
    with several training replicas, else Mirrored. Custom: under the tf.distribute.Strategy that the
    module's build_strategy returns. TPU: on the TPU of one replica. ModelSplit: each device holds a
    part of the model, as mesh says."""

    mesh: Annotated[job_file.Mesh | None, rules.Rules(*mesh_rules.MESH_RULES)] = None
    """How the devices share the model: for strategy ModelSplit, which needs it. The product of
    data, stage, spatial and tensor is the number of devices: replicas x devices."""

    trainer: Annotated[trainer_spec.Trainer | None, trainer_rules.TRAINER] = None
    """What the shipped trainer runs. Absent: the command of each template runs as it is."""

    on_separate_training: separate_training.OnSeparateTraining = (
        separate_training.OnSeparateTraining.STOP
    )
    """What a script leads to whose replicas train separate models, such as one that calls Keras'
    fit. Stop: the first step fails the job, with exit code 65. Continue: log and condition
    SeparateTraining say so."""

    volume_claim_templates: claims.ClaimTemplates = ()
    """Claims that the operator makes before the pods, one for each template, for all replicas
    together. trainer.checkpoint.claim and trainer.volumes name them by their template's name.
    Cannot change."""

    persistent_volume_claim_retention_policy: claims.RetentionPolicy = pydantic.Field(
        default_factory=claims.RetentionPolicy
    )
    """How long the claims of volumeClaimTemplates live. Cannot change."""

    scheduling: Scheduling | None = None
    """When and where the scheduler puts the replicas. Absent: as places become free; with
    ModelSplit, pods whose devices exchange most prefer the same node, and all the same zone."""

    network: Network = Network.ISOLATED
    """Who may connect to the job's pods. Isolated: each other and nobody else, by a NetworkPolicy;
    what they connect to is left alone. Open: everybody. Cannot change."""

    host_network: bool = False
    """True runs the pods on the network of their nodes, as some fast networks need it. Each replica
    then listens on a port of its own, which no other job uses; needs network Open. Cannot
    change."""

    managed_by: Manager | None = None
    """Who runs the job. Absent, or tfparallel.dev/operator: this operator, which leaves the jobs of
    any other manager alone, such as kueue.x-k8s.io/multikueue. Cannot change."""

    run_policy: RunPolicy = pydantic.Field(default_factory=RunPolicy)
    """How long the job may run, how often it is retried, and what is left of it."""

    success_policy: SuccessPolicy = SuccessPolicy.DEFAULT
    """Without a chief: worker 0 decides about success, or with AllWorkers all of them."""

    enable_dynamic_worker: bool = False
    """True tells a worker of itself and the servers alone, so that workers may come and go."""

    clean_pod_policy: Misplaced[str] = None
    """A trap: belongs below runPolicy."""

    ttl_seconds_after_finished: Misplaced[int] = None
    """A trap: belongs below runPolicy."""

    active_deadline_seconds: Misplaced[int] = None
    """A trap: belongs below runPolicy."""

    backoff_limit: Misplaced[int] = None
    """A trap: belongs below runPolicy."""


class Metadata(pydantic.BaseModel):
    """The part of an object's metadata that decisions need; the rest is let through unread."""

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
    deletion_timestamp: str | None = None
    labels: dict[str, str] = pydantic.Field(default_factory=dict)


class TFParallelJob(base.Model):
    """Trains a TensorFlow model on several replicas."""

    api_version: Literal["tfparallel.dev/v1alpha1"]
    kind: Literal["TFParallelJob"]
    metadata: Metadata
    spec: Annotated[Spec, spec_rules.SPEC_RULES]
    status: job_status.JobStatus = pydantic.Field(default_factory=job_status.JobStatus)
