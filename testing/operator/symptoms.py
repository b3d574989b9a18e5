"""Jobs that wait, are slow, restart or failed, with the status that the operator writes of them.

The operator's own decisions write each status; the words of scheduler and kubelet are those that
the clusters of the tests wrote.
"""

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

from testing.operator import builders
from tfparallel import models
from tfparallel.diagnosis import findings
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import observation, pending_reasons
from tfparallel_operator.core.life import obstacles
from tfparallel_operator.engine.write import refusals
from tfparallel_trainer.contract import exits, progress, separate_training, verification

NO_GPUS = "Unschedulable: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu"
NO_OTHER_NODE = (
    "Unschedulable: 0/4 nodes are available: 1 node(s) didn't match Pod's node affinity/selector,"
    " 3 Insufficient nvidia.com/gpu"
)
NO_CLAIM = (
    'Unschedulable: 0/4 nodes are available: persistentvolumeclaim "digits" not found. not found'
)
NO_IMAGE = (
    'ImagePullBackOff: Back-off pulling image "registry.example/digits:2": ErrImagePull: rpc error:'
    ' code = NotFound desc = failed to pull and unpack image "registry.example/digits:2":'
    " failed to resolve reference: registry.example/digits:2: not found"
)
UNBOUND = (
    "Unschedulable: 0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. not"
    " found"
)
NO_CLASS = models.Claim("digits", "Pending", None, ("ReadWriteOnce",))
SHARED_CLAIM = models.Claim("digits", "Pending", "standard", ("ReadWriteMany",))
NOT_SHARED = (
    'failed to provision volume with StorageClass "standard": NodePath only supports ReadWriteOnce'
    " and ReadWriteOncePod (1.22+) access modes"
)
BACK_OFF = 'ImagePullBackOff: Back-off pulling image "registry.example/digits:2"'
UNTRUSTED = (
    'Failed to pull image "registry.example/digits:2": failed to do request: Head'
    ' "https://registry.example/v2/digits/manifests/2": tls: failed to verify certificate: x509:'
    " certificate signed by unknown authority"
)
NO_CONFIG_MAP = 'MountVolume.SetUp failed for volume "source" : configmap "digits" not found'
NO_QUOTA = (
    'pods "digits-worker-0" is forbidden: exceeded quota: team, requested: pods=1, used: pods=2,'
    " limited: pods=2"
)
DEAD_WEBHOOK = (
    'Internal error occurred: failed calling webhook "pods.example.com": failed to call webhook:'
    ' Post "https://127.0.0.1:9/mutate?timeout=10s": dial tcp 127.0.0.1:9: connect: connection'
    " refused"
)
NO_QUEUE_QUOTA = (
    "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor"
    " default-flavor, 4 more needed"
)
PREEMPTED = (
    "Preempted to accommodate a workload (UID: 9f54, JobUID: a20d) due to prioritization in the"
    " ClusterQueue"
)
NO_METRICS = (
    "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics"
    " from resource metrics API: the server could not find the requested resource (get"
    " pods.metrics.k8s.io)"
)
OPERATOR = models.Operator("tfparallel-system", "tfparallel-operator", 1, 1, ())


def world(*, queue: bool = False, script: bool = False, **job: Any) -> builders.World:
    """Return the job `digits` with all its pods."""
    spec, run_policy = job.pop("spec", {}), job.pop("run_policy", {})
    document = builders.manifest(trainer=not script, **(job or {"chief": 1, "worker": 1}))
    document["metadata"]["name"] = "digits"
    document["spec"] |= {**spec, "runPolicy": run_policy}
    settings = builders.SETTINGS
    if queue:
        document["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
        settings = dataclasses.replace(settings, queues=True)
    cluster = builders.World(load.parse_job(document), settings=settings)
    cluster.run_until_quiet()
    return cluster


def running(**job: Any) -> builders.World:
    """Return the same job while it runs."""
    cluster = world(**job)
    cluster.run()
    cluster.run_until_quiet()
    return cluster


def facts(
    cluster: builders.World,
    *,
    events: Sequence[models.Event] = (),
    lines: Sequence[str] = (),
    operators: Sequence[models.Operator] | None = None,
    claims: Sequence[models.Claim] = (),
) -> findings.JobSnapshot:
    """Return what the client would read of a job."""
    job = models.Job(
        name=cluster.job.metadata.name,
        namespace="team",
        uid=cluster.job.metadata.uid,
        created=builders.START,
        status=cluster.status,
        manifest=cluster.job.model_dump(by_alias=True, mode="json", exclude_none=True),
    )
    replicas = [_replica(pod) for pod in cluster.pods.values()]
    return findings.JobSnapshot(job, replicas, events, claims, lines, operators, cluster.now)


def _replica(pod: observation.Pod) -> models.Replica:
    return models.Replica(
        name=pod.replica.name,
        pod=pod.name,
        attempt=pod.attempt,
        phase="Terminating" if pod.deleting else pod.phase.value,
        node=pod.node,
        reason=pod.waiting or ("ContainerCreating" if pod.node else ""),
        exit_code=None if pod.exit is None else pod.exit.code,
        created=builders.START,
    )


def warning(pod: str, reason: str, message: str) -> models.Event:
    """Return an Event of a pod."""
    return models.Event(builders.START, "Warning", reason, f"pod/{pod}", message)


def claim_event(reason: str, message: str, kind: str = "Warning") -> models.Event:
    """Return an Event of the claim digits."""
    return models.Event(builders.START, kind, reason, "persistentvolumeclaim/digits", message)


def report(cluster: builders.World, **more: Any) -> None:
    """Have the coordinator report."""
    sent = progress.Report(
        step=120, total_steps=400, metrics={"loss": "0.31"}, examples_per_second="840", **more
    )
    reports = job_status.of_report(sent, cluster.now)
    changed = cluster.status.model_copy(update=reports._asdict())
    cluster.job = cluster.job.model_copy(update={"status": changed})


def separate_models() -> builders.World:
    """Return a script whose two workers train a model each."""
    cluster = running(script=True, worker=2)
    cluster.advance(30)
    separate = separate_training.SeparateTraining(
        replica="worker-0", peers=1, method="fit", place="train.py, line 14"
    )
    reports = job_status.of_report(progress.Report(step=0, separate_training=separate), cluster.now)
    cluster.job = cluster.job.model_copy(
        update={"status": cluster.status.model_copy(update=reports._asdict())}
    )
    cluster.run_until_quiet()
    cluster.advance(5)
    return cluster


def trained_separate_models() -> findings.JobSnapshot:
    """The same script when it has succeeded."""
    cluster = separate_models()
    cluster.exit("digits-worker-0", 0)
    cluster.exit("digits-worker-1", 0)
    cluster.run_until_quiet()
    cluster.advance(3 * 60 * 60)
    return facts(cluster)


def waiting_worker(sentence: str, node: str = "") -> findings.JobSnapshot:
    """A worker waits, in words of its pod."""
    cluster = world()
    cluster.run("digits-chief-0")
    cluster.update("digits-worker-0", waiting=sentence, node=node)
    cluster.run_until_quiet()
    cluster.advance(180)
    return facts(cluster)


def explained(
    cluster: builders.World,
    pod: str,
    events: Sequence[models.Event],
    claims: Sequence[models.Claim] = (),
) -> findings.JobSnapshot:
    """The operator has read in Events and claims what the status of a pod does not say."""
    replicas = [_replica(pod) for pod in cluster.pods.values()]
    waiting_pod = pending_reasons.WaitingPod(pod, cluster.pods[pod].waiting, cluster.pods[pod].node)
    cluster.update(pod, waiting=waiting_pod.find_words(events, claims))
    cluster.run_until_quiet()
    cluster.advance(180)
    return dataclasses.replace(facts(cluster, events=events, claims=claims), replicas=replicas)


def waits_for_config_map() -> findings.JobSnapshot:
    """The kubelet says in Events alone what a pod lacks."""
    event = warning("digits-chief-0", "FailedMount", NO_CONFIG_MAP)
    cluster = world(chief=1)
    cluster.update("digits-chief-0", node="node-1", waiting="")
    return explained(cluster, "digits-chief-0", [event])


def waits_for_claim(
    claim: models.Claim, *events: models.Event, sentence: str = UNBOUND
) -> findings.JobSnapshot:
    """A worker waits for a claim; the scheduler does not say which, or nothing at all."""
    cluster = world()
    cluster.run("digits-chief-0")
    cluster.update("digits-worker-0", waiting=sentence)
    return explained(cluster, "digits-worker-0", events, [claim])


def waits_for_untrusted_image() -> findings.JobSnapshot:
    """Between two tries the kubelet's state has no cause."""
    cluster = world()
    cluster.run("digits-chief-0")
    cluster.update("digits-worker-0", waiting=BACK_OFF, node="node-1")
    events = [
        warning("digits-worker-0", "Failed", text) for text in (UNTRUSTED, "Error: ErrImagePull")
    ]
    return explained(cluster, "digits-worker-0", events)


def refused(
    sentence: str = NO_QUOTA, reason: names.Reason = names.Reason.QUOTA_EXCEEDED
) -> findings.JobSnapshot:
    """A quota has no room for a pod, or the cluster refuses one for another reason."""
    return keeps_from_pods(observation.Refusal(reason, sentence, final=False))


def keeps_from_pods(refusal: observation.Refusal) -> findings.JobSnapshot:
    """Something keeps the job from getting pods."""
    cluster = world()
    cluster.step(refusal=refusal)
    cluster.advance(180)
    return facts(cluster)


def names_are_taken(*holders: obstacles.Holder) -> findings.JobSnapshot:
    """Other objects have names that the job needs."""
    return keeps_from_pods(obstacles.explain(holders, builders.START))


def kept_by_finalizer() -> findings.JobSnapshot:
    """A worker failed, and a finalizer of others keeps its pod."""
    cluster = running()
    cluster.exit("digits-worker-0", 75)
    cluster.advance(60)
    cluster.step()
    finalizers = ("example.com/flush-logs",)
    cluster.update("digits-worker-0", deleting=True, delete_by=cluster.now, finalizers=finalizers)
    cluster.step()
    cluster.advance(180)
    return facts(cluster)


def cannot_have_a_status() -> findings.JobSnapshot:
    """The API server refuses the status of the job, which the operator says by Events."""
    cluster = builders.World(world().job.model_copy(update={"status": job_status.JobStatus()}))
    cluster.advance(180)
    sentence = "the API server refuses the job's status: a name begins with a letter"
    event = models.Event(
        object="tfparalleljob/digits",
        type="Warning",
        reason=names.Reason.STATUS_REFUSED,
        message=sentence,
        time=cluster.now,
    )
    return facts(cluster, events=[event])


def queued(
    message: str = NO_QUEUE_QUOTA, reason: str = "Pending", kind: str = "QuotaReserved"
) -> findings.JobSnapshot:
    """Kueue has no quota for the job, or says something else of its Workload."""
    cluster = world(queue=True)
    assert cluster.workload is not None
    truth = "True" if kind == "Evicted" else "False"
    fields = {"type": kind, "status": truth, "reason": reason, "message": message}
    condition = {**fields, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    cluster.workload = dataclasses.replace(cluster.workload, conditions=(condition,))
    cluster.run_until_quiet()
    cluster.advance(600)
    return facts(cluster)


def unseen(
    operators: Sequence[models.Operator] | None, seconds: float = 45
) -> findings.JobSnapshot:
    """No operator has written a status."""
    cluster = builders.World(world().job.model_copy(update={"status": job_status.JobStatus()}))
    cluster.advance(seconds)
    return facts(cluster, operators=operators)


def suspended() -> findings.JobSnapshot:
    """The user has suspended it."""
    cluster = world(run_policy={"suspend": True})
    cluster.advance(300)
    return facts(cluster)


def restarting() -> findings.JobSnapshot:
    """A worker ran out of memory twice, and the next attempt waits a little."""
    resources = {"limits": {"memory": "2Gi"}}
    container = {"name": names.CONTAINER, "image": "trainer:1", "resources": resources}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    cluster = running(spec={"tfReplicaSpecs": {"Chief": {"replicas": 1}, "Worker": worker}})
    for _ in range(2):
        cluster.run()
        cluster.run_until_quiet()
        killed = dataclasses.replace(builders.an_exit(137, cluster.now), reason="OOMKilled")
        cluster.update("digits-worker-0", phase=observation.Phase.FAILED, exit=killed)
        cluster.step()
    cluster.reap()
    return facts(cluster)


def restarted() -> findings.JobSnapshot:
    """A worker ran out of memory, and the next attempt has made no step yet."""
    cluster = running()
    killed = dataclasses.replace(builders.an_exit(137, cluster.now), reason="OOMKilled")
    cluster.update("digits-worker-0", phase=observation.Phase.FAILED, exit=killed)
    cluster.run_until_quiet()
    cluster.run()
    cluster.run_until_quiet()
    cluster.advance(30)
    return facts(cluster, lines=["chief-0: reading data"])


def restart_that_waits() -> findings.JobSnapshot:
    """Its node was drained, and there is no other."""
    cluster = running()
    drained = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    cluster.update("digits-worker-0", disrupted=True, **drained)
    cluster.exit("digits-worker-0", 143)
    cluster.run_until_quiet()
    cluster.update("digits-worker-0", waiting=NO_GPUS)
    cluster.run_until_quiet()
    cluster.advance(180)
    return facts(cluster)


def avoids_node() -> findings.JobSnapshot:
    """A device of a node failed twice, and no other node has room."""
    cluster = running()
    for _ in range(2):
        cluster.update("digits-worker-0", node="gpu-7")
        cluster.exit("digits-worker-0", exits.Exit.DEVICE_FAILED)
        cluster.run_until_quiet()
        cluster.advance(10)
        cluster.run_until_quiet()
        cluster.run("digits-chief-0")
    cluster.update("digits-worker-0", waiting=NO_OTHER_NODE, unschedulable_since=cluster.now)
    cluster.run_until_quiet()
    cluster.advance(30)
    return facts(cluster)


def failed() -> findings.JobSnapshot:
    """The user's module raised."""
    cluster = running()
    message = "model.py, line 12: No module named 'pandas'. Install it in the image"
    cluster.exit("digits-chief-0", 65, message)
    cluster.run_until_quiet()
    cluster.advance(120)
    return facts(cluster, lines=["chief-0: import pandas", f"chief-0: error: {message}"])


def failed_without_words() -> findings.JobSnapshot:
    """A library crashed, and the budget is spent."""
    cluster = running(run_policy={"backoffLimit": 0})
    cluster.exit("digits-worker-0", 139)
    for _ in range(3):
        cluster.run_until_quiet()
        cluster.advance(60)
    return facts(cluster, lines=["worker-0: step 3"])


def stalled() -> findings.JobSnapshot:
    """No report for longer than the job allows, and no room for another attempt."""
    cluster = running(run_policy={"stallDeadlineSeconds": 60})
    cluster.advance(5)
    report(cluster)
    cluster.advance(61)
    cluster.step()
    return facts(cluster)


def silent() -> findings.JobSnapshot:
    """No report for five minutes, which the job allows."""
    cluster = running()
    cluster.advance(5)
    report(cluster)
    cluster.advance(300)
    cluster.run_until_quiet()
    return facts(cluster, lines=["chief-0: step 120/400  epoch 2/5  loss 0.31  840 examples/s"])


def slow_start() -> findings.JobSnapshot:
    """No step has ended."""
    cluster = running()
    cluster.advance(400)
    cluster.run_until_quiet()
    return facts(cluster, lines=["chief-0: reading data"])


def input_bound() -> findings.JobSnapshot:
    """The input takes a third of each step."""
    cluster = running()
    cluster.advance(5)
    report(cluster, input_wait="0.35")
    cluster.run_until_quiet()
    return facts(cluster)


def straggling() -> findings.JobSnapshot:
    """One stage of a split model computes twice as long as the others."""
    mesh = {"stage": 3}
    cluster = running(spec={"strategy": "ModelSplit", "mesh": mesh}, worker=3)
    cluster.advance(5)
    stages = tuple(
        progress.StagePlacement(
            stage=stage,
            devices=(f"worker-{stage}/CPU:0",),
            device_count=1,
            layers=f"block{stage} to block{stage}_out",
            layer_count=3,
            parameter_bytes=2**20,
            busy_seconds="0.41" if stage == 1 else "0.2",
        )
        for stage in range(3)
    )
    report(cluster, placement=progress.Placement(mesh={"stage": 3}, stages=stages))
    cluster.run_until_quiet()
    return facts(cluster)


def slow_worker() -> findings.JobSnapshot:
    """One worker stays slower than the others."""
    cluster = running(worker=3)
    cluster.advance(5)
    report(cluster, straggler="worker-1")
    cluster.run_until_quiet()
    return facts(cluster)


PLANNED_MEMORY = progress.MemoryPlan(
    stage=0,
    peak_bytes=12 * 2**30,
    device_bytes=8 * 2**30,
    changes=(
        progress.FittingChange(setting=progress.ChangedSetting.SHARD_OPTIMIZER),
        progress.FittingChange(setting=progress.ChangedSetting.BATCH_SIZE, count=16),
    ),
)
"""What the planner expects of a model that is too large for its devices."""


def report_large_model(cluster: builders.World) -> None:
    """Have the coordinator report, before the first step, that the model does not fit."""
    placement = progress.Placement(mesh={"data": 3}, memory=PLANNED_MEMORY)
    sent = progress.Report(step=0, before_first_step=True, placement=placement)
    reports = job_status.of_report(sent, cluster.now)
    changed = cluster.status.model_copy(update=reports._asdict())
    cluster.job = cluster.job.model_copy(update={"status": changed})


def large_model(**run_policy: Any) -> builders.World:
    """The planner expects a split model not to fit its devices."""
    spec = {"strategy": "ModelSplit", "mesh": {"data": 3}}
    cluster = running(run_policy=run_policy, spec=spec, worker=3)
    cluster.advance(5)
    report_large_model(cluster)
    cluster.run_until_quiet()
    cluster.advance(5)
    return cluster


def training() -> findings.JobSnapshot:
    """Nothing is wrong."""
    cluster = running()
    cluster.advance(5)
    differences = {verification.Quantity.LOSS: verification.Difference(2e-16, 1e-10)}
    verified = verification.Verification.with_check(None, verification.Check(64, differences))
    report(cluster, eta="5m3s", input_wait="0.02", verification=verified)
    return facts(cluster)


def waited_for_input() -> findings.JobSnapshot:
    """It trains well now, and waited for data before."""
    cluster = running()
    cluster.advance(600)
    spent = progress.RunSeconds(training=415, input_wait=170, checkpointing=3)
    report(cluster, eta="5m3s", input_wait="0.02", seconds=spent)
    return facts(cluster)


def contested() -> findings.JobSnapshot:
    """Another installation of the operator watches the namespace, too."""
    cluster = running()
    ours, other = "team/operator", "system/operator"
    cluster.settings = dataclasses.replace(cluster.settings, installation=ours)
    question = f"{other} asked {cluster.now.isoformat()}"
    assert cluster.config is not None
    cluster.config = dataclasses.replace(cluster.config, installation=ours, question=question)
    cluster.job = cluster.job.model_copy(update={"status": cluster.decide().status})
    cluster.advance(5)
    report(cluster)
    return facts(cluster)


def not_scaled() -> findings.JobSnapshot:
    """The autoscaler of a job has no metrics."""
    cluster = running()
    event = models.Event(
        cluster.now,
        "Warning",
        "FailedGetResourceMetric",
        "horizontalpodautoscaler/digits",
        NO_METRICS,
    )
    cluster.advance(5)
    report(cluster)
    return facts(cluster, events=[event])


def not_installed(manifest: dict[str, Any], *, queue: bool = False) -> findings.JobSnapshot:
    """The cluster does not know an object that the job needs."""
    cluster = world(queue=queue)
    cluster.step(refusal=refusals.not_installed(manifest))
    cluster.advance(180)
    return facts(cluster)


def partly_running() -> findings.JobSnapshot:
    """With parameter servers training continues while a worker waits."""
    cluster = world(chief=1, worker=2, ps=1)
    cluster.run("digits-chief-0", "digits-ps-0", "digits-worker-0")
    cluster.update("digits-worker-1", waiting=NO_GPUS)
    cluster.run_until_quiet()
    cluster.advance(180)
    return facts(cluster)


def succeeded() -> findings.JobSnapshot:
    """It ended well."""
    cluster = running()
    cluster.exit("digits-chief-0", 0)
    cluster.run_until_quiet()
    cluster.advance(datetime.timedelta(hours=3).total_seconds())
    return facts(cluster)


class Backend:
    """The part of a backend that is the same for each test: it has the job that facts are about."""

    def __init__(self, facts: findings.JobSnapshot) -> None:
        self.facts = facts

    async def get_job(self, _: str) -> models.Job:
        return self.facts.job

    async def list_replicas(self, _: models.Job) -> Sequence[models.Replica]:
        return self.facts.replicas

    async def list_events(self, _: models.Job) -> Sequence[models.Event]:
        return self.facts.events

    async def list_claims(self, _: models.Job) -> Sequence[models.Claim]:
        return self.facts.claims


SYMPTOMS: dict[str, Callable[[], findings.JobSnapshot]] = {
    "no operator": lambda: unseen([]),
    "operator does not run": lambda: unseen([dataclasses.replace(OPERATOR, ready=0)]),
    "operator watches others": lambda: unseen([dataclasses.replace(OPERATOR, watched=("ml",))]),
    "operator unknown": lambda: unseen(None),
    "operator gone": lambda: dataclasses.replace(waiting_worker(NO_GPUS), operators=[]),
    "too many GPUs": lambda: waiting_worker(NO_GPUS),
    "missing claim": lambda: waiting_worker(NO_CLAIM),
    "no storage class": lambda: waits_for_claim(NO_CLASS),
    "claim that is refused": lambda: waits_for_claim(
        SHARED_CLAIM, claim_event("ProvisioningFailed", NOT_SHARED), sentence=""
    ),
    "untrusted registry": waits_for_untrusted_image,
    "missing image": lambda: waiting_worker(NO_IMAGE, "node-1"),
    "missing ConfigMap": waits_for_config_map,
    "quota": refused,
    "dead webhook": lambda: refused(DEAD_WEBHOOK, names.Reason.SERVER_UNAVAILABLE),
    "names of others": lambda: names_are_taken(
        obstacles.Holder("service/digits", obstacles.Whose.OTHER),
        obstacles.Holder("configmap/digits-tfparallel", obstacles.Whose.OTHER),
    ),
    "pod of an earlier job": lambda: names_are_taken(
        obstacles.Holder("pod/digits-chief-0", obstacles.Whose.EARLIER, deleting=True)
    ),
    "pod on a lost node": lambda: names_are_taken(
        obstacles.Holder(
            "pod/digits-chief-0",
            obstacles.Whose.EARLIER,
            deleting=True,
            delete_by=builders.START - obstacles.STUCK_AFTER,
            node="node-1",
        )
    ),
    "finalizer": kept_by_finalizer,
    "status refused": cannot_have_a_status,
    "no Kueue": lambda: not_installed(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "spec": {"queueName": "research"},
        },
        queue=True,
    ),
    "no gang scheduler": lambda: not_installed(
        {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup"}
    ),
    "queue": queued,
    "preempted": lambda: queued(PREEMPTED, "Preempted", "Evicted"),
    "suspended": suspended,
    "restarting": restarting,
    "restarted": restarted,
    "restart that waits": restart_that_waits,
    "avoided node": avoids_node,
    "failed": failed,
    "failed without words": failed_without_words,
    "stalled": stalled,
    "silent": silent,
    "slow start": slow_start,
    "input": input_bound,
    "straggler": straggling,
    "slow worker": slow_worker,
    "autoscaler without metrics": not_scaled,
    "partly running": partly_running,
    "separate models": lambda: facts(separate_models()),
    "separate models that are trained": trained_separate_models,
    "training": training,
    "earlier input wait": waited_for_input,
    "contested": contested,
    "large model": lambda: facts(large_model()),
    "succeeded": succeeded,
}
