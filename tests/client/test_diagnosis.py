"""Why a job is as it is: rules on the statuses that the operator's own decisions write."""

import dataclasses
import datetime
import json

import pytest

from testing.operator import symptoms
from tfparallel import models
from tfparallel.cli import why
from tfparallel.diagnosis import findings, rules
from tfparallel_operator.api import names
from tfparallel_operator.core import remedies
from tfparallel_operator.core.life import failure, slowness
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import exits

KINDS = {
    "no operator": ("Unseen", "it is not installed in this cluster", "helm install"),
    "operator does not run": ("Unseen", "does not run", "describe deployment tfparallel-operator"),
    "operator watches others": ("Unseen", "watches only ml", "watchNamespaces"),
    "operator gone": ("Pending", "4 Insufficient nvidia.com/gpu", "Lower devices"),
    "operator unknown": ("Unseen", "does not watch namespace 'team'", "Ask an administrator"),
    "too many GPUs": ("Pending", "4 Insufficient nvidia.com/gpu", "Lower devices"),
    "missing claim": ("Pending", 'persistentvolumeclaim "digits" not found', "Create the claim"),
    "no storage class": ("Pending", '"digits" names no StorageClass', "Delete the claim digits"),
    "claim that is refused": ("Pending", "only supports ReadWriteOnce", "such as ReadWriteOnce"),
    "untrusted registry": ("Pending", "x509: certificate signed by", "trust the registry's"),
    "missing image": ("Pending", "ImagePullBackOff", "Push the image"),
    "missing ConfigMap": ("Pending", 'configmap "digits" not found', "kubectl create configmap"),
    "quota": ("Refused", "exceeded quota: team", "kubectl describe quota team"),
    "dead webhook": ("Refused", 'failed calling webhook "pods', "repair webhook pods.example.com"),
    "names of others": (
        "Refused",
        "names that it needs: configmap/digits-tfparallel service/digits",
        "`kubectl delete configmap/digits-tfparallel service/digits`",
    ),
    "pod of an earlier job": ("Refused", "pod/digits-chief-0 of an earlier job", "Wait: the job"),
    "pod on a lost node": (
        "Refused",
        "node node-1 has not ended pod/digits-chief-0",
        "`kubectl delete node node-1`",
    ),
    "finalizer": (
        "Refused",
        "finalizer example.com/flush-logs keeps pod/digits-worker-0",
        "`kubectl edit pod/digits-worker-0`",
    ),
    "status refused": ("Refused", "a name begins with a letter", "tfparallel delete digits"),
    "no Kueue": ("Refused", "does not know Workloads", "Install Kueue"),
    "no gang scheduler": ("Refused", "does not know PodGroups", "Install the gang scheduler"),
    "queue": ("Queued", "queue research", "Wait until other jobs of the queue end"),
    "preempted": ("Queued", "Preempted to accommodate a workload", "Raise the priority"),
    "suspended": ("Suspended", "suspended for 5m", "tfparallel resume digits"),
    "restarting": ("Restarting", "digits-worker-0 exited with code 137", "resources.limits.memory"),
    "restarted": ("Starting", "digits has restarted for OutOfMemory", "resources.limits.memory"),
    "restart that waits": ("Restarting", "Insufficient nvidia.com/gpu", "Lower devices"),
    "avoided node": (
        "Restarting",
        "digits-worker-0 waits: Unschedulable",
        "The job avoids node gpu-7",
    ),
    "failed": ("Failed", "digits-chief-0 exited with code 65", "Correct what the log's"),
    "failed without words": ("Failed", "ended by signal 11", "crashed in native code"),
    "stalled": ("Stalled", "no progress after step 120", "runPolicy.stallDeadlineSeconds"),
    "silent": ("Slow", "reported nothing since step 120", "tfparallel logs digits"),
    "slow start": ("Slow", "no step has ended yet", "See what the coordinator does"),
    "input": ("Slow", "waits for its input more than 10% of the time", "num_parallel_calls"),
    "straggler": ("Slow", "stage 1 on worker-1/CPU:0 computes for longer", "Divide the layers"),
    "slow worker": ("Slow", "worker-1 stays slower than the other", "Look at the load of its node"),
    "autoscaler without metrics": ("Training", "pods.metrics.k8s.io", "Install metrics-server"),
    "partly running": ("Pending", "runs with 3/4 replicas", "Lower devices"),
    "separate models": (
        "Separate",
        "runs, but worker-0 trains a model of its own (train.py, line 14): TF_CONFIG gives it",
        "Call tfparallel_trainer.start() right after the imports",
    ),
    "separate models that are trained": (
        "Succeeded",
        "succeeded 3h ago, but worker-0 trains a model of its own",
        "call tfparallel_trainer.fit there",
    ),
    "training": ("Training", "step 120 of 400", ""),
    "earlier input wait": ("Training", "nothing that it reports holds it up", "read more files"),
    "contested": ("Training", "system/operator of the operator watches", "watchNamespaces"),
    "large model": (
        "Starting",
        "no step has ended yet. But the model does not fit its devices",
        "The model fits with mesh.shardOptimizer",
    ),
    "succeeded": ("Succeeded", "succeeded 3h ago", ""),
}


@pytest.mark.parametrize("symptom", symptoms.SYMPTOMS)
def test_each_symptom_has_its_sentence_and_remedy(symptom: str) -> None:
    kind, sentence, remedy = KINDS[symptom]
    diagnosis = rules.diagnose(symptoms.SYMPTOMS[symptom]())
    assert diagnosis.kind == kind
    assert "digits" in diagnosis.sentence
    assert sentence in diagnosis.sentence
    assert remedy in diagnosis.remedy
    assert bool(remedy) == bool(diagnosis.remedy)


@pytest.mark.parametrize("symptom", symptoms.SYMPTOMS)
def test_what_is_printed_fits_eighty_columns(symptom: str) -> None:
    lines = list(why.render(rules.diagnose(symptoms.SYMPTOMS[symptom]())))
    assert lines
    for line in lines:
        is_whole = line.lstrip().startswith(
            ("`", "https://")
        )  # commands and addresses are never broken
        assert len(line) <= 80 or is_whole, line
    assert not any("\x1b" in line or "\0" in line for line in lines)


def test_the_remedy_stands_once_though_the_condition_has_it_too() -> None:
    for symptom in ("quota", "stalled", "restarting", "failed without words"):
        facts = symptoms.SYMPTOMS[symptom]()
        remedy = next(filter(None, (condition.remedy for condition in facts.status.conditions)))
        text = "\n".join(why.render(rules.diagnose(facts)))
        assert " ".join(text.split()).count(remedy) == 1, symptom


KINDS_OF_TROUBLE = ("Pending", "Stalled", "Restarting", "Failed", "Refused", "Queued")
"""Of jobs that an operator has looked at, and with which something is the matter."""


@pytest.mark.parametrize("symptom", [s for s in KINDS if KINDS[s][0] == "Slow"])
def test_the_condition_says_why_training_is_slow(symptom: str) -> None:
    facts = symptoms.SYMPTOMS[symptom]()
    diagnosis, running = rules.diagnose(facts), facts.find_true(names.ConditionType.RUNNING)
    holdup = slowness.Pace(facts.status, facts.now, must_report=True).find_slowness("digits")
    assert running is not None and holdup is not None
    assert diagnosis.sentence == f"digits is slow: {holdup.cause}"
    assert running.message.endswith(f"training is slow: {holdup.cause}. {diagnosis.remedy}")


@pytest.mark.parametrize(
    "symptom",
    [s for s in KINDS if KINDS[s][0] in KINDS_OF_TROUBLE and s != "status refused"],
)
def test_a_condition_says_what_why_says(symptom: str) -> None:
    facts = symptoms.SYMPTOMS[symptom]()
    diagnosis = rules.diagnose(facts)
    shown = [
        (conditions.read_problem(condition), condition.remedy or "")
        for condition in facts.status.conditions
    ]
    waits = [counts.waiting for counts in facts.status.replicas.values()]
    shown += [(wait.reason, wait.remedy) for wait in waits if wait is not None]
    fits = [
        problem.rstrip(".") in diagnosis.sentence and diagnosis.remedy.startswith(remedy)
        for problem, remedy in shown
    ]
    assert any(fits)


@pytest.mark.parametrize("symptom", ["quota", "queue", "stalled", "restarting", "contested"])
def test_of_an_older_operator_the_message_is_shown_whole(symptom: str) -> None:
    """Its status has the sentences alone, and nobody takes them apart."""
    facts = symptoms.SYMPTOMS[symptom]()
    listed = facts.status.conditions
    [condition] = [
        condition for condition in listed if condition.remedy and condition.type != "Running"
    ][:1]
    without = [
        condition.model_copy(update={"problem": None, "remedy": None}) for condition in listed
    ]
    status = facts.status.model_copy(update={"conditions": tuple(without), "failure": None})
    older = dataclasses.replace(facts, job=dataclasses.replace(facts.job, status=status))
    diagnosis = rules.diagnose(older)
    assert condition.message.rstrip(".") in diagnosis.sentence
    assert diagnosis.remedy != condition.remedy


def test_of_an_older_operator_the_words_of_a_pod_are_shown_whole() -> None:
    facts = symptoms.waiting_worker(symptoms.NO_GPUS)
    replicas = [dataclasses.replace(replica, reason="") for replica in facts.replicas]
    newer = dataclasses.replace(facts, replicas=replicas)
    assert f"digits-worker-0 waits: {symptoms.NO_GPUS}"[:-1] in rules.diagnose(newer).sentence
    worker = facts.status.replicas["Worker"]
    changed = {"Worker": worker.model_copy(update={"waiting": None})}
    status = facts.status.model_copy(update={"replicas": {**facts.status.replicas, **changed}})
    older = dataclasses.replace(newer, job=dataclasses.replace(facts.job, status=status))
    assert f"digits-worker-0: {symptoms.NO_GPUS}"[:-1] in rules.diagnose(older).sentence


def test_why_and_the_condition_name_every_cause_of_pods_that_wait() -> None:
    world = symptoms.world()
    world.update("digits-chief-0", waiting=symptoms.NO_GPUS)
    world.update("digits-worker-0", waiting=symptoms.NO_IMAGE, node="node-1").run_until_quiet()
    facts = symptoms.facts(world)
    diagnosis = rules.diagnose(facts)
    assert f"digits-worker-0 and 1 more wait: {symptoms.NO_IMAGE}" in diagnosis.sentence
    assert diagnosis.remedy == remedies.find(symptoms.NO_IMAGE)
    other = f"digits-chief-0 waits: {symptoms.NO_GPUS}. {remedies.find(symptoms.NO_GPUS)}"
    assert diagnosis.evidence[-1] == findings.Evidence(findings.EvidenceSource.POD, other)
    [running] = [condition for condition in facts.status.conditions if condition.type == "Running"]
    for message in (symptoms.NO_IMAGE, symptoms.NO_GPUS):
        assert f"{message}. {remedies.find(message)}" in running.message


def test_the_words_of_the_failed_replica_are_evidence() -> None:
    diagnosis = rules.diagnose(symptoms.failed())
    logged = [
        fact.text for fact in diagnosis.evidence if fact.source is findings.EvidenceSource.LOG
    ]
    assert logged[0] == "chief-0: import pandas"


@pytest.mark.parametrize("code", [code for code in exits.Exit if code])
def test_every_exit_code_of_the_trainer_has_a_remedy(code: exits.Exit) -> None:
    world = symptoms.running(run_policy={"backoffLimit": 0})
    for _ in range(1 + failure.PATIENCE if code in exits.ASKED_TO_END else 1):
        world.exit("digits-chief-0", code, "the trainer's own sentence")
        for _ in range(3):
            world.run_until_quiet()
            world.advance(60)
    diagnosis = rules.diagnose(symptoms.facts(world))
    assert diagnosis.kind is findings.FindingKind.FAILED
    assert diagnosis.remedy.startswith(remedies.BY_EXIT_CODE[code])
    assert "the trainer's own sentence" in diagnosis.sentence


def test_a_new_job_has_ten_seconds() -> None:
    diagnosis = rules.diagnose(symptoms.unseen([symptoms.OPERATOR], seconds=4))
    assert (diagnosis.kind, diagnosis.remedy) == (findings.FindingKind.UNSEEN, "Wait a moment.")
    late = rules.diagnose(symptoms.unseen([symptoms.OPERATOR]))
    assert "runs, and does not act" in late.sentence


def test_a_job_that_goes_on_without_an_operator_looks_alive_only() -> None:
    running = symptoms.facts(symptoms.running())
    alive = rules.diagnose(dataclasses.replace(running, operators=[symptoms.OPERATOR]))
    for operators, reason in (
        ([], "it is not installed in this cluster"),
        (
            [dataclasses.replace(symptoms.OPERATOR, ready=0)],
            "tfparallel-system/tfparallel-operator does not run",
        ),
        ([dataclasses.replace(symptoms.OPERATOR, watched=("ml",))], "it watches only ml"),
    ):
        diagnosis = rules.diagnose(dataclasses.replace(running, operators=operators))
        first, *others = diagnosis.evidence
        assert first.source is findings.EvidenceSource.OPERATOR
        assert first.text.startswith(f"none acts on digits now: {reason}")
        assert {*alive.evidence} <= {*others}
        assert (diagnosis.sentence, diagnosis.remedy) == (alive.sentence, alive.remedy)


def test_a_job_that_has_ended_needs_no_operator() -> None:
    ended = dataclasses.replace(symptoms.succeeded(), operators=[])
    assert rules.diagnose(ended).kind is findings.FindingKind.SUCCEEDED


def test_a_job_of_another_manager_waits_for_that() -> None:
    facts = symptoms.unseen([])
    manifest = {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}
    job = dataclasses.replace(facts.job, manifest=manifest)
    diagnosis = rules.diagnose(dataclasses.replace(facts, job=job))
    assert "managed by kueue.x-k8s.io/multikueue (spec.managedBy)" in diagnosis.sentence


def test_events_of_an_earlier_pod_of_the_name_do_not_count() -> None:
    facts = symptoms.waiting_worker("", "node-1")
    event = symptoms.warning("digits-worker-0", "FailedMount", symptoms.NO_CONFIG_MAP)
    old = dataclasses.replace(event, time=event.time - datetime.timedelta(seconds=1))
    diagnosis = rules.diagnose(dataclasses.replace(facts, events=[old]))
    assert "waits for its containers, which node-1 creates" in diagnosis.sentence


def test_of_a_gang_the_pod_that_holds_up_the_others_is_named() -> None:
    world = symptoms.world(chief=1, worker=2)
    message = "Unschedulable: optimistic rejection in PostFilter"
    world.update("digits-chief-0", waiting=message)
    world.update("digits-worker-0", waiting=message)
    world.update("digits-worker-1", waiting=symptoms.NO_GPUS).run_until_quiet()
    diagnosis = rules.diagnose(symptoms.facts(world))
    assert "digits-worker-1 and 2 more wait: Unschedulable: 0/4" in diagnosis.sentence


@pytest.mark.parametrize(
    ("claim", "event", "sentence", "remedy"),
    [
        (
            symptoms.SHARED_CLAIM,
            ("ProvisioningFailed", 'storageclass.storage.k8s.io "standard" not found', "Warning"),
            'persistentvolumeclaim "digits": ProvisioningFailed: storageclass.storage.k8s.io',
            "`kubectl get storageclass` lists: standard does not exist",
        ),
        (
            dataclasses.replace(symptoms.SHARED_CLAIM, storage_class=""),
            (
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set",
                "Normal",
            ),
            "no storage class is set",
            "Create a volume that fits the claim digits",
        ),
        (
            symptoms.SHARED_CLAIM,
            ("ProvisioningFailed", "rpc error: the array is full", "Warning"),
            "the array is full",
            "`kubectl describe pvc digits`",
        ),
        (
            symptoms.SHARED_CLAIM,
            ("ExternalProvisioning", "Waiting for a volume to be created", "Normal"),
            "Waiting for a volume to be created",
            "see that the provisioner",
        ),
        (
            dataclasses.replace(symptoms.SHARED_CLAIM, phase="Lost"),
            ("ClaimLost", "Bound claim has lost its PersistentVolume", "Warning"),
            "is Lost: its volume no longer exists",
            "create it again",
        ),
    ],
    ids=["class", "volume", "provisioner", "waits", "lost"],
)
def test_a_claim_without_a_volume_is_named(
    claim: models.Claim, event: tuple[str, str, str], sentence: str, remedy: str
) -> None:
    diagnosis = rules.diagnose(symptoms.waits_for_claim(claim, symptoms.claim_event(*event)))
    assert diagnosis.kind is findings.FindingKind.PENDING
    assert sentence in diagnosis.sentence
    assert remedy in diagnosis.remedy
    [state, shown] = diagnosis.evidence[1:]
    assert state.source is findings.EvidenceSource.CLAIM
    assert state.text.startswith(f"digits is {claim.phase}, ReadWriteMany, of ")
    assert shown.text.startswith(event[0])


@pytest.mark.parametrize("message", [symptoms.NO_GPUS, ""], ids=["scheduler", "nobody"])
def test_a_claim_that_waits_for_its_pod_is_no_cause(message: str) -> None:
    event = symptoms.claim_event("WaitForFirstConsumer", "waiting for first consumer", "Normal")
    diagnosis = rules.diagnose(
        symptoms.waits_for_claim(symptoms.SHARED_CLAIM, event, sentence=message)
    )
    assert "consumer" not in diagnosis.sentence
    assert "digits-worker-0 waits" in diagnosis.sentence
    assert {fact.source for fact in diagnosis.evidence} == {findings.EvidenceSource.POD}


def test_a_claim_that_is_bound_is_no_cause() -> None:
    claim = dataclasses.replace(symptoms.SHARED_CLAIM, phase="Bound")
    event = symptoms.claim_event("ProvisioningFailed", symptoms.NOT_SHARED)
    diagnosis = rules.diagnose(symptoms.waits_for_claim(claim, event))
    assert "unbound immediate" in diagnosis.sentence


@pytest.mark.parametrize(
    ("reason", "message", "remedy"),
    [
        ("Inadmissible", "LocalQueue research doesn't exist", "Create the LocalQueue research"),
        ("Inadmissible", "ClusterQueue main doesn't exist", "for the ClusterQueue main"),
        ("Inadmissible", "ClusterQueue main is inactive", "start the queue"),
        (
            "Inadmissible",
            "Workload namespace doesn't match ClusterQueue selector",
            "let the namespace use the ClusterQueue",
        ),
        ("PodsReadyTimeout", "Exceeded the PodsReady timeout team/digits", "did not start in time"),
        ("ClusterQueueStopped", "The ClusterQueue is stopped", "start the queue"),
        ("Deactivated", "The workload is deactivated", "Set spec.active"),
        ("Pending", "the moon is full", "Wait until Kueue admits it"),
    ],
)
def test_words_of_kueue_have_a_remedy(reason: str, message: str, remedy: str) -> None:
    evicts = reason in ("PodsReadyTimeout", "ClusterQueueStopped", "Deactivated")
    kind = "Evicted" if evicts else "QuotaReserved"
    diagnosis = rules.diagnose(symptoms.queued(message, reason, kind))
    assert diagnosis.kind is findings.FindingKind.QUEUED
    assert f"queue research: {reason}: {message}" in diagnosis.sentence
    assert remedy in diagnosis.remedy


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (symptoms.NO_QUEUE_QUOTA, []),
        ("preempted 2 workloads", ["Pending 10m ago: preempted 2 workloads"]),
    ],
    ids=["same words", "other words"],
)
def test_the_latest_event_of_kueue_is_evidence(message: str, expected: list[str]) -> None:
    facts = symptoms.queued()
    event = symptoms.warning("digits-worker-0", "Pending", message)
    event = dataclasses.replace(event, object="workload/tfparalleljob-digits")
    diagnosis = rules.diagnose(dataclasses.replace(facts, events=[event]))
    shown = [
        fact.text for fact in diagnosis.evidence if fact.source is findings.EvidenceSource.EVENT
    ]
    assert shown == expected


@pytest.mark.parametrize(
    ("cause", "remedy"),
    [
        ("manifest unknown", "Push the image"),
        ("pull access denied, repository does not exist", "imagePullSecrets"),
        ("401 Unauthorized", "imagePullSecrets"),
        ("toomanyrequests: You have reached your pull rate limit", "limits how often"),
    ],
)
def test_between_two_pulls_the_event_has_the_registrys_words(cause: str, remedy: str) -> None:
    facts = symptoms.waits_for_untrusted_image()
    text = f'Failed to pull image "registry.example/digits:2": {cause}'
    facts = dataclasses.replace(facts, events=[symptoms.warning("digits-worker-0", "Failed", text)])
    diagnosis = rules.diagnose(facts)
    assert f"ImagePullBackOff: {text}" in diagnosis.sentence
    assert remedy in diagnosis.remedy


def _limited(limit: str) -> dict[str, object]:
    resources = {"limits": {"memory": limit}} if limit else {}
    containers = [{"name": "tensorflow", "image": "x", "resources": resources}]
    return {"Worker": {"replicas": 1, "template": {"spec": {"containers": containers}}}}


@pytest.mark.parametrize(
    ("limit", "text"),
    [("2Gi", ", with limits.memory 2Gi"), ("", ", without limits.memory: its node ran out")],
)
def test_what_was_allowed_to_a_replica_that_ran_out_of_memory(limit: str, text: str) -> None:
    facts = symptoms.restarting()
    manifest = {
        **facts.job.manifest,
        "spec": {**facts.job.manifest["spec"], "tfReplicaSpecs": _limited(limit)},
    }
    job = dataclasses.replace(facts.job, manifest=manifest)
    diagnosis = rules.diagnose(dataclasses.replace(facts, job=job))
    [shown] = [
        fact.text for fact in diagnosis.evidence if fact.source is findings.EvidenceSource.EXIT
    ]
    assert text in shown


def test_only_who_may_have_run_out_of_memory_is_shown_with_a_limit() -> None:
    facts = symptoms.failed_without_words()
    manifest = {
        **facts.job.manifest,
        "spec": {**facts.job.manifest["spec"], "tfReplicaSpecs": _limited("2Gi")},
    }
    facts = dataclasses.replace(facts, job=dataclasses.replace(facts.job, manifest=manifest))
    assert "limits.memory" not in str(rules.diagnose(facts).evidence)


def test_the_limit_of_the_pod_that_ended_outweighs_that_of_the_job() -> None:
    facts = symptoms.restarting()
    pod = models.Replica("worker-0", "digits-worker-0", 2, "Failed", exit_code=137)
    pod = dataclasses.replace(pod, memory_limit="3Gi")
    diagnosis = rules.diagnose(dataclasses.replace(facts, replicas=[pod]))
    assert any("limits.memory 3Gi" in fact.text for fact in diagnosis.evidence)


def test_a_loss_that_is_not_answered_yet_is_no_wait() -> None:
    world = symptoms.running(worker=2)
    world.exit("digits-worker-0", exits.Exit.PEER_LOST)
    world.step()
    diagnosis = rules.diagnose(symptoms.facts(world))
    assert "digits-worker-0 exited with code 75, and the operator looks" in diagnosis.sentence


def test_a_pod_that_its_node_does_not_end_is_evidence_of_a_restart() -> None:
    world = symptoms.running()
    world.update("digits-worker-0", node="node-3")
    world.exit("digits-chief-0", exits.Exit.PEER_LOST)
    world.exit("digits-worker-0", exits.Exit.DEVICE_FAILED)
    world.step()
    diagnosis = rules.diagnose(symptoms.facts(world))
    assert diagnosis.kind is findings.FindingKind.RESTARTING
    assert "digits-worker-0 is still being deleted on node-3" in {
        fact.text for fact in diagnosis.evidence
    }


def test_a_custom_script_without_reports_is_not_slow() -> None:
    facts = symptoms.slow_start()
    job = dataclasses.replace(facts.job, manifest={"spec": {"tfReplicaSpecs": {}}})
    diagnosis = rules.diagnose(dataclasses.replace(facts, job=job))
    assert diagnosis.kind is findings.FindingKind.TRAINING
    assert "which reports no progress" in diagnosis.sentence


def test_a_report_of_an_earlier_attempt_says_nothing_of_this_one() -> None:
    facts = symptoms.training()
    later = facts.now + datetime.timedelta(seconds=30)
    status = facts.status.model_copy(update={"attempt_time": later})
    job = dataclasses.replace(facts.job, status=status)
    later += datetime.timedelta(seconds=1)
    diagnosis = rules.diagnose(dataclasses.replace(facts, job=job, now=later))
    assert diagnosis.kind is findings.FindingKind.STARTING


def test_json_has_the_parts() -> None:
    diagnosis = rules.diagnose(symptoms.suspended())
    shown = json.loads(json.dumps(why.to_object("digits", "team", diagnosis)))
    assert shown == {
        "job": "digits",
        "namespace": "team",
        "kind": "Suspended",
        "sentence": "digits has been suspended for 5m, by runPolicy.suspend",
        "remedy": "Let it run: `tfparallel resume digits`.",
        "documentation": "",
        "evidence": [],
        "goodput": {
            "age": 300,
            "share": 0.0,
            "seconds": {**{kind.value: 0 for kind in names.Activity}, "suspended": 300},
        },
    }


def test_training_that_was_compared_with_one_process_has_that_as_evidence() -> None:
    diagnosis = rules.diagnose(symptoms.training())
    assert "Step 64 (1 check) equals one process: loss 2e-16 (limit 1e-10)" in [
        evidence.text for evidence in diagnosis.evidence
    ]


def test_a_step_that_differs_from_one_process_fails_the_job_for_good() -> None:
    world = symptoms.world(run_policy={"backoffLimit": 6})
    world.run().run_until_quiet()
    sentence = "After step 2 the kernel of dense differs from one process. Synchronize it."
    world.exit("digits-worker-0", exits.Exit.VERIFICATION_FAILED, sentence).run_until_quiet()
    diagnosis = rules.diagnose(symptoms.facts(world))
    assert (diagnosis.kind, diagnosis.reason) == ("Failed", "VerificationFailed")
    assert "the kernel of dense differs from one process" in diagnosis.sentence
