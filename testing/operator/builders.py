"""Builders for tests: jobs, pods and a world that carries decisions out in memory."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any, Self

from tfparallel_operator.api import job_status, load, names, types
from tfparallel_operator.core import decide, decision, installation, layout, observation, replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.pods import pod_builder
from tfparallel_operator.core.status import conditions, replica_records
from tfparallel_operator.engine.observe import records

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SETTINGS = installation.InstallationSettings(
    trainer_image="tfparallel/trainer:test",
    progress_url="https://operator.example",
    progress_ca="CERTIFICATES",
)
ROLES = {
    "chief": "Chief",
    "master": "Master",
    "worker": "Worker",
    "ps": "PS",
    "evaluator": "Evaluator",
}


def manifest(*, trainer: bool = False, **roles: int) -> dict[str, Any]:
    """Return a job's manifest: a_job(chief=1, worker=2)."""
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "i", "command": ["c"]}]}}
    specs = {
        ROLES[role]: {"replicas": count} | ({} if trainer else {"template": template})
        for role, count in roles.items()
    }
    spec: dict[str, Any] = {"tfReplicaSpecs": specs}
    if trainer:
        spec["trainer"] = {"epochs": 1}
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "job", "namespace": "ns", "uid": "job-uid", "generation": 1},
        "spec": spec,
    }


def a_job(
    *,
    trainer: bool = False,
    elastic: bool = False,
    run_policy: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **roles: int,
) -> types.TFParallelJob:
    """Return a checked job."""
    document = a_manifest(
        trainer=trainer, elastic=elastic, run_policy=run_policy, spec=spec, queue="", **roles
    )
    return load.parse_job(document)


def a_manifest(
    *,
    trainer: bool = False,
    elastic: bool = False,
    run_policy: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    queue: str = "",
    **roles: int,
) -> dict[str, Any]:
    """Return the manifest of a job."""
    document = manifest(trainer=trainer, **roles)
    document["spec"].update(spec or {})
    if run_policy:
        document["spec"]["runPolicy"] = run_policy
    if elastic:
        document["spec"]["tfReplicaSpecs"]["Worker"].update(minReplicas=1, maxReplicas=3)
    if queue:
        document["metadata"]["labels"] = {names.LABEL_QUEUE: queue}
    return document


def a_split_job(mesh: dict[str, Any], **roles: Any) -> types.TFParallelJob:
    """Return a job of strategy ModelSplit."""
    spec = {"strategy": "ModelSplit", "mesh": mesh, **roles.pop("spec", {})}
    return a_job(trainer=True, spec=spec, **roles)


def a_pod(
    job: types.TFParallelJob,
    replica: replicas.Replica,
    settings: installation.InstallationSettings = SETTINGS,
    *,
    attempt: int = 1,
    replica_attempt: int = 0,
    memory_growths: int = 0,
) -> dict[str, Any]:
    """Return the manifest of a replica's pod."""
    status = job_status.JobStatus(attempt=attempt, replica_attempts={replica.name: replica_attempt})
    for _ in range(memory_growths):
        status = replica_records.grow_memory(status, replica.role)
    return pod_builder.PodBuilder(layout.build(job), settings, status).build(replica)


def an_exit(code: int, at: datetime.datetime = START, message: str = "") -> observation.Exit:
    """Return the exit of a container."""
    return observation.Exit(code, "Completed" if code == 0 else "Error", message, at)


@dataclasses.dataclass
class World:
    """One job and its children in memory; the test acts as the kubelet and the clock.

    Methods that change it return it, so that `run_until_quiet` may follow.
    """

    job: types.TFParallelJob
    now: datetime.datetime = START
    pods: dict[str, observation.Pod] = dataclasses.field(default_factory=dict)
    has_service: bool = False
    config: observation.Config | None = None
    has_policy: bool = False
    host_port: int | None = None
    settings: installation.InstallationSettings = SETTINGS
    problem: observation.SpecProblem | None = None
    """Why the newest spec is invalid; the job then has the last valid one."""
    groups: dict[tuple[str, str], observation.Group] = dataclasses.field(default_factory=dict)
    workload: observation.Workload | None = None
    flavors: dict[str, observation.Flavor] = dataclasses.field(default_factory=dict)
    manifests: list[decision.Manifest] = dataclasses.field(default_factory=list)
    claims: list[str] = dataclasses.field(default_factory=list)
    """Claims of templates; to make one again changes nothing."""
    deleted: bool = False
    created: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    members: dict[str, str] = dataclasses.field(default_factory=dict)
    """The PodGroup of Kubernetes that each pod names, by the pod's uid."""
    events: list[decision.JobEvent] = dataclasses.field(default_factory=list)
    writes: int = 0
    _uids: int = 0

    @property
    def status(self) -> job_status.JobStatus:
        return self.job.status

    def condition(self, kind: names.ConditionType) -> job_status.Condition:
        """Return a condition that the job has."""
        condition = conditions.find(self.status, kind)
        assert condition is not None, kind
        return condition

    def children(self) -> observation.Children:
        return observation.Children(
            pods=tuple(self.pods.values()),
            has_service=self.has_service,
            config=self.config,
            has_policy=self.has_policy,
            groups=tuple(self.groups.values()),
            workloads=() if self.workload is None else (self.workload,),
        )

    def environment(self, refusal: observation.Refusal | None = None) -> observation.Environment:
        return observation.Environment(flavors=self.flavors, refusal=refusal)

    def layout(self) -> Layout:
        return layout.build(self.job, first_port=self.host_port)

    def decide(self, refusal: observation.Refusal | None = None) -> decision.Decision:
        job: Layout | observation.InvalidJob = self.layout()
        if self.problem is not None:
            accepted = self.layout() if self.status.attempt or self.pods else None
            job = observation.InvalidJob(self.problem, self.status, accepted)
        environment = self.environment(refusal)
        return decide.decide(job, self.children(), environment, self.now, self.settings)

    def step(
        self, *, writes: int | None = None, refusal: observation.Refusal | None = None
    ) -> bool:
        """Decide once and carry it out, or only its first writes; say whether anything changed."""
        return self.carry_out(self.decide(refusal), writes)

    def carry_out(self, outcome: decision.Decision, writes: int | None = None) -> bool:
        """Carry a decision out, or only its first writes; say whether anything changed."""
        actions: list[Any] = [*outcome.deletions, *outcome.changes, *outcome.creations]
        if outcome.status != self.job.status and not outcome.creates_first:
            actions.insert(0, outcome.status)
        for action in actions if writes is None else actions[:writes]:
            self._carry_out(action)
        if outcome.delete_job:
            self.deleted = True
        if not outcome.creates_first:
            self.events += outcome.events
        return bool(actions) or outcome.delete_job

    def write_first_status(self) -> None:
        """Write the first status of a job of which nothing can be created."""
        self.carry_out(dataclasses.replace(self.decide(), creates_first=False, creations=()))

    def run_until_quiet(self) -> None:
        """Decide until nothing is left to do; deleted pods vanish at once."""
        for _ in range(20):
            self.reap()
            if self.step():
                if self.deleted:
                    return
            elif not self._wait_for_the_attempt():
                return
        raise AssertionError("the decisions do not come to rest")

    def _wait_for_the_attempt(self) -> bool:
        """Wait until a restart that pauses begins; say whether one did."""
        begins_at = self.status.attempt_time
        if begins_at is None or begins_at <= self.now or conditions.finished(self.status):
            return False
        self.now = begins_at
        return True

    def reap(self) -> None:
        """Remove the pods that are being deleted."""
        self.pods = {name: pod for name, pod in self.pods.items() if not pod.deleting}

    def update(self, name: str, **changes: Any) -> Self:
        """Change what is observed of a pod."""
        self.pods[name] = dataclasses.replace(self.pods[name], **changes)
        return self

    def run(self, *pod_names: str) -> Self:
        """Let pods run: those named, else all that wait."""
        for name, pod in self.pods.items():
            if name in pod_names or (not pod_names and pod.phase is observation.Phase.PENDING):
                self.update(name, phase=observation.Phase.RUNNING)
        return self

    def exit(self, name: str, code: int, message: str = "") -> Self:
        """Let a pod's container exit, with what it leaves as its termination message."""
        phase = observation.Phase.SUCCEEDED if code == 0 else observation.Phase.FAILED
        return self.update(name, phase=phase, exit=an_exit(code, self.now, message))

    def advance(self, seconds: float) -> Self:
        """Let time pass."""
        self.now += datetime.timedelta(seconds=seconds)
        return self

    def edit(self, **changes: Any) -> Self:
        """Change fields of spec.runPolicy, as a person does: a new generation."""
        return self.edit_spec(run_policy=self.job.spec.run_policy.model_copy(update=changes))

    def scale(self, workers: int) -> Self:
        """Change the number of workers, as `kubectl scale` does."""
        specs = dict(self.job.spec.tf_replica_specs)
        worker = types.Role.WORKER
        specs[worker] = specs[worker].model_copy(update={"replicas": workers})
        return self.edit_spec(tf_replica_specs=specs)

    def edit_spec(self, **changes: Any) -> Self:
        """Change fields of the spec likewise."""
        spec = self.job.spec.model_copy(update=changes)
        generation = self.job.metadata.generation + 1
        metadata = self.job.metadata.model_copy(update={"generation": generation})
        self.job = self.job.model_copy(update={"spec": spec, "metadata": metadata})
        return self

    def _carry_out(self, action: Any) -> None:
        self.writes += 1
        if isinstance(action, job_status.JobStatus):
            written = job_status.JobStatus.model_validate_json(
                action.model_dump_json(by_alias=True, exclude_none=True)
            )
            assert written == action, "a status survives the way to the API server and back"
            self.job = self.job.model_copy(update={"status": written})
        elif isinstance(action, decision.Change) and action.type == decision.WORKLOAD:
            self._change_workload(action)
        elif isinstance(action, decision.Change) and action.type == decision.CONFIG_MAP:
            self.config = observation.Config(action.name, action.uid, _fingerprint(action.fields))
        elif isinstance(action, decision.Change):
            group = self.groups[action.type[0], action.name]
            assert group.uid == action.uid
            spec = {**group.spec, **action.fields["spec"]}
            spec = {key: value for key, value in spec.items() if value is not None}
            self.groups[action.type[0], action.name] = dataclasses.replace(group, spec=spec)
        elif isinstance(action, decision.Deletion) and action.type == decision.WORKLOAD:
            assert self.workload is not None
            assert self.workload.uid == action.uid
            self.workload = None
        elif isinstance(action, decision.Deletion) and action.type != decision.POD:
            assert self.groups.pop((action.type[0], action.name)).uid == action.uid
        elif isinstance(action, decision.Deletion):
            assert self.pods[action.name].uid == action.uid
            self.update(action.name, deleting=True)
        else:
            self._create(action)

    def _change_workload(self, change: decision.Change) -> None:
        workload = self.workload
        assert workload is not None
        assert (workload.uid, workload.version, "status") == (
            change.uid,
            change.version,
            change.subresource,
        )
        status = dict(change.fields["status"])
        changes: dict[str, Any] = {"conditions": tuple(status.pop("conditions"))}
        if "admission" in status:
            assert status.pop("admission") is None
            changes |= {"admission": {}, "cluster_queue": ""}
        if "reclaimablePods" in status:
            pods = status.pop("reclaimablePods") or ()
            changes["reclaimable"] = {entry["name"]: entry["count"] for entry in pods}
        assert not status
        version = str(int(workload.version) + 1)
        self.workload = dataclasses.replace(workload, version=version, **changes)

    def _create(self, created: decision.Manifest) -> None:
        name = created["metadata"]["name"]
        self.manifests.append(created)
        if created["kind"] == "Service":
            assert not self.has_service
            self.has_service = True
        elif created["kind"] == "ConfigMap":
            assert self.config is None
            self.config = observation.Config(
                created["metadata"]["name"], "config-uid", _fingerprint(created)
            )
        elif created["kind"] == "NetworkPolicy":
            assert not self.has_policy
            self.has_policy = True
        elif created["kind"] == "PersistentVolumeClaim":
            self.claims += [] if name in self.claims else [name]
        elif created["kind"] == "PodGroup":
            key = created["apiVersion"], name
            assert key not in self.groups
            self.groups[key] = observation.Group(*key, "group-uid", created["spec"])
        elif created["kind"] == "Workload":
            assert self.workload is None
            assert not self.pods, "a job queues when nothing of it runs any more"
            metadata = {"uid": f"workload-{len(self.manifests)}", "resourceVersion": "1"}
            body = {**created, "metadata": {**created["metadata"], **metadata}}
            self.workload = records.workload(body)
        else:
            assert name not in self.pods, f"{name} is created while it exists"
            labels = created["metadata"]["labels"]
            role = types.Role(ROLES[labels[names.LABEL_ROLE]])
            replica = replicas.Replica(role, int(labels[names.LABEL_INDEX]))
            attempt = int(labels[names.LABEL_ATTEMPT])
            replica_attempt = int(labels[names.LABEL_REPLICA_ATTEMPT])
            self._uids += 1
            self.pods[name] = observation.Pod(
                name,
                f"uid-{self._uids}",
                replica,
                attempt,
                replica_attempt,
                observation.Phase.PENDING,
            )
            self.created.append((name, attempt, replica_attempt))
            if group := created["spec"].get("schedulingGroup"):
                self.members[f"uid-{self._uids}"] = group["podGroupName"]


def _fingerprint(config_map: Mapping[str, Any]) -> str:
    return str(config_map["metadata"]["annotations"][names.ANNOTATION_CONTENT])


def a_world(**job: object) -> World:
    """A job that has all its pods."""
    world = World(a_job(**job))  # type: ignore[arg-type]
    world.run_until_quiet()
    return world


def running(**job: object) -> World:
    """A job whose pods run."""
    world = a_world(**job)
    world.run().run_until_quiet()
    return world


def state_of(world: World) -> str | None:
    """The job's current state."""
    return world.status.state


def truth(world: World, kind: names.ConditionType) -> tuple[str, str] | None:
    """Whether a condition holds, and why."""
    condition = conditions.find(world.status, kind)
    return None if condition is None else (condition.status.value, condition.reason)
