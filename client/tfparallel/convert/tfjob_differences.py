"""What a converted TFJob does otherwise than the TFJob did: the one place that says so.

`convert` reports those that concern a job, and docs/how-to/tfjob.md shows them all.
"""

import dataclasses

from tfparallel.convert import conversion


class TFJobDifference(conversion.Difference):
    """All differences, in the order of the page."""

    RESTART_POLICY = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "absent `restartPolicy`",
        "`Never`",
        "by strategy, bounded by `backoffLimit`",
        "writes TFJob's; remove it for ours",
    )
    DEFAULT_RESTART_POLICY = dataclasses.replace(
        RESTART_POLICY,
        severity=conversion.Severity.BEHAVIOR,
        action="with `--defaults tfparallel` leaves it out; write it for TFJob's",
    )
    CLEAN_POD_POLICY = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "absent `cleanPodPolicy`",
        "`None`: servers and evaluator run on when the job has ended (until v1beta2: `Running`)",
        "`Running`: they end with the job",
        "writes TFJob's; remove it for ours",
    )
    DEFAULT_CLEAN_POD_POLICY = dataclasses.replace(
        CLEAN_POD_POLICY,
        severity=conversion.Severity.BEHAVIOR,
        action="with `--defaults tfparallel` leaves it out; write it for TFJob's",
    )
    BACKOFF_LIMIT = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "absent `backoffLimit`",
        "no limit",
        "3",
        "writes 1000000 where a failed replica runs again; give a number to bound it",
    )
    DEFAULT_BACKOFF_LIMIT = dataclasses.replace(
        BACKOFF_LIMIT,
        severity=conversion.Severity.BEHAVIOR,
        action="with `--defaults tfparallel` leaves it out; write it for TFJob's",
    )
    COUNTED = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`backoffLimit`",
        "the restarts of containers in running pods; with `ExitCode` it never counts",
        "every failure that leads to a restart",
        "leaves it",
    )
    TOGETHER = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "a restart without parameter servers",
        "the failed replica alone; its peers hang or fail",
        "all replicas of a synchronous job together",
        "leaves it: the script has to resume from a checkpoint",
    )
    ALWAYS = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`restartPolicy: Always` after exit 0",
        "the replica runs again",
        "a completed replica stays completed",
        "leaves it",
    )
    DISRUPTION = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "a deleted, evicted or lost pod",
        "it fails the job",
        "it runs again and is not counted, also with `Never`",
        "leaves it: the job did nothing wrong",
        is_general=True,
    )
    EVALUATOR_FAILS = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "a failed evaluator",
        "it fails the job",
        "it runs again alone, and never fails training",
        "leaves it",
    )
    EVALUATOR_GRACE = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "an evaluator when training has succeeded",
        "`cleanPodPolicy` is applied to it at once",
        "it may continue for `evaluatorGraceSeconds` (300) first",
        "leaves it; 0 ends it at once",
    )
    EVALUATOR_ADDRESS = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "evaluator in `TF_CONFIG`",
        "in the cluster of every replica",
        "only in its own, as in TensorFlow 2",
        "leaves it",
    )
    MASTER = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "`Master` in `TF_CONFIG`",
        "`master`",
        "`chief`: TensorFlow 2 has no master",
        "leaves it: change a script that asks for `master`; its pod is still called master",
    )
    SERVERS = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "servers without a chief",
        "worker 0 decides about the end",
        "the same; with `spec.trainer` a chief is added",
        "leaves it",
    )
    ONE_REPLICA = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "a job of one replica",
        "no `TF_CONFIG`",
        "a `TF_CONFIG` of one replica",
        "leaves it; if a script depends on it, set `TF_CONFIG` to `{}` in the container's env",
    )
    TEMPLATE_TF_CONFIG = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`TF_CONFIG` in a template",
        "TFJob's own wins",
        "the template's wins",
        "removes it where TFJob sets its own",
    )
    ENVIRONMENT = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`environment` in `TF_CONFIG`",
        "`cloud`",
        "absent: nothing since TensorFlow 1.4 reads it",
        "leaves it",
        is_general=True,
    )
    ADDRESSES = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "addresses",
        "`job-worker-0.namespace.svc`",
        "`job-worker-0.job`, so that thousands fit in one variable",
        "leaves it: change what names the old ones",
        is_general=True,
    )
    SERVICES = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "Services",
        "one for each pod",
        "one for the job; names resolve before pods are ready",
        "leaves it: change what names the old ones",
        is_general=True,
    )
    NETWORK = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "who may connect to a pod",
        "everybody",
        "the pods of its job, where the cluster's network enforces policies",
        "leaves it: `network: Open` lets everybody connect",
        is_general=True,
    )
    HOSTNAME = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`hostname`, `subdomain` in a template",
        "kept",
        "replaced: addresses consist of them",
        "removes them",
    )
    POD_RESTART_POLICY = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`restartPolicy` in a template",
        "overwritten by that of the role",
        "overwritten by `Never`: the operator restarts replicas",
        "leaves it: it counts for nothing",
    )
    CONTAINER_RESTART_POLICY = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`restartPolicy`, `restartPolicyRules` of a container",
        "the kubelet restarts the container in place",
        "removed, but for `Always` of a sidecar: the operator restarts replicas",
        "leaves it: it counts for nothing",
    )
    IMAGE = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "an image of TensorFlow 1",
        "its script runs",
        "it runs, but `fit` and `spec.trainer` do not, which need TensorFlow 2",
        "leaves it: build an image with TensorFlow 2 to use them",
    )
    LABELS = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "labels of pods",
        "`training.kubeflow.org/...`",
        "`tfparallel.dev/...`",
        "renames them in affinity, spread constraints and field paths; change what else selects"
        " by them",
    )
    DEADLINE = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`activeDeadlineSeconds`",
        "checked when something happens: a quiet job continues",
        "it ends the job on time",
        "leaves it",
    )
    SCHEDULING_POLICY = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "`schedulingPolicy`",
        "pods start together or not at all, where the operator has a gang scheduler",
        "the same; without a gang scheduler the job is refused",
        "leaves it: set `scheduling.gang`, or start the operator with `--gang-scheduler`",
    )
    SCHEDULER = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "`schedulerName` in a template",
        "pods start together or not at all, where the operator has a gang scheduler",
        "that scheduler takes one pod after the other",
        "leaves it: set `scheduling.gang` to `Volcano` or `Coscheduling`",
    )
    POD_GROUP = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "annotation `scheduling.k8s.io/group-name`",
        "the operator creates the PodGroup, if it has a gang scheduler",
        "no one creates it",
        "leaves it: make the PodGroup, or remove the annotation",
    )
    MANAGED_BY = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`managedBy: kubeflow.org/training-operator`",
        "TFJob's own operator runs the job",
        "this one does",
        "removes it",
    )
    QUEUE = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "label `kueue.x-k8s.io/queue-name`",
        "Kueue suspends the job until there is quota; where there is no Kueue it starts at once",
        "it waits until its Workload is admitted, also where there is no Kueue; `suspend` is yours",
        "leaves it: remove `suspend: true` if Kueue wrote it",
    )
    ROLE_KEYS = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "role keys",
        "any case; other words get unmanaged pods",
        "`Chief`, `Master`, `Worker`, `PS`, `Evaluator`",
        "writes them so, and refuses others",
    )
    NO_REPLICAS = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "a role of 0 replicas",
        "no pods",
        "refused",
        "removes the role",
    )
    CLEAN_WORD = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "another word as `cleanPodPolicy`",
        "`All`",
        "refused",
        "writes `All`; correct it if you meant another",
    )
    SUCCESS_WORD = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "another word as `successPolicy`",
        "worker 0 decides",
        "refused",
        "removes it; write `AllWorkers` if you meant it",
    )
    MISPLACED = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "fields of `runPolicy` in `spec`",
        "ignored silently; the older tf-operator read them",
        "refused",
        "moves them to where they count",
    )
    UNKNOWN = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "unknown fields",
        "ignored silently",
        "refused by `kubectl`",
        "removes them",
    )
    EXPORTED = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`status`, and metadata that the cluster wrote",
        "of the TFJob",
        "of another object",
        "removes them",
    )
