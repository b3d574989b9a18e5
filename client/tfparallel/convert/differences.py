"""What a converted job does otherwise than the TFJob did: the one place that says so.

`convert` tells of each that concerns a job, and docs/tfjob.md shows them all.
"""

import dataclasses
import enum


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One difference, as the cells of a table and the parts of a sentence."""

    subject: str
    theirs: str
    ours: str
    done: str
    """What convert does about it, and what is left to do."""
    everywhere: bool = False
    """Whether it holds for every job: the page tells it, not each conversion."""


class Difference(enum.Enum):
    """All differences, in the order of the page."""

    RESTART_POLICY = Row(
        "absent `restartPolicy`",
        "`Never`",
        "by strategy, bounded by `backoffLimit`",
        "writes TFJob's; remove it for ours",
    )
    CLEAN_POD_POLICY = Row(
        "absent `cleanPodPolicy`",
        "`None`: servers and evaluator run on when the job has ended (until v1beta2: `Running`)",
        "`Running`: they end with the job",
        "writes TFJob's; remove it for ours",
    )
    BACKOFF_LIMIT = Row(
        "absent `backoffLimit`",
        "no limit",
        "3",
        "writes 2147483647 where a failed replica runs again; give a number to bound it",
    )
    COUNTED = Row(
        "`backoffLimit`",
        "the restarts of containers in running pods; with `ExitCode` it never counts",
        "every failure that leads to a restart",
        "leaves it",
    )
    TOGETHER = Row(
        "a restart without parameter servers",
        "the failed replica alone; its peers hang or fail",
        "all replicas of a synchronous job together",
        "leaves it: the script has to go on from a checkpoint",
    )
    ALWAYS = Row(
        "`restartPolicy: Always` after exit 0",
        "the replica runs again",
        "a completed replica stays completed",
        "leaves it",
    )
    DISRUPTION = Row(
        "a deleted, evicted or lost pod",
        "it fails the job",
        "it runs again and is not counted, also with `Never`",
        "leaves it: the job did nothing wrong",
        everywhere=True,
    )
    EVALUATOR_FAILS = Row(
        "a failed evaluator",
        "it fails the job",
        "it runs again alone, and never fails training",
        "leaves it",
    )
    EVALUATOR_GRACE = Row(
        "an evaluator when training has succeeded",
        "`cleanPodPolicy` is applied to it at once",
        "it may go on for `evaluatorGraceSeconds` (300) first",
        "leaves it; 0 ends it at once",
    )
    EVALUATOR_ADDRESS = Row(
        "evaluator in `TF_CONFIG`",
        "in the cluster of every replica",
        "only in its own, as TensorFlow 2 wants it",
        "leaves it",
    )
    MASTER = Row(
        "`Master` in `TF_CONFIG`",
        "`master`",
        "`chief`, for TensorFlow 2 knows no master",
        "leaves it; its pod is still called master",
    )
    SERVERS = Row(
        "servers without a chief",
        "worker 0 decides about the end",
        "the same; with `spec.trainer` a chief is added",
        "leaves it",
    )
    ONE_REPLICA = Row(
        "a job of one replica",
        "no `TF_CONFIG`",
        "a `TF_CONFIG` of one replica",
        "leaves it; for a script that minds give the container an env `TF_CONFIG` of `{}`",
    )
    GIVEN_TF_CONFIG = Row(
        "`TF_CONFIG` in a template",
        "TFJob's own wins",
        "the template's wins",
        "removes it where TFJob sets its own",
    )
    ENVIRONMENT = Row(
        "`environment` in `TF_CONFIG`",
        "`cloud`",
        "absent: nothing since TensorFlow 1.4 reads it",
        "leaves it",
        everywhere=True,
    )
    ADDRESSES = Row(
        "addresses",
        "`job-worker-0.namespace.svc`",
        "`job-worker-0.job`, for thousands have to fit one variable",
        "leaves it",
        everywhere=True,
    )
    SERVICES = Row(
        "Services",
        "one for each pod",
        "one for the job; names resolve before pods are ready",
        "leaves it",
        everywhere=True,
    )
    NETWORK = Row(
        "who may connect to a pod",
        "everybody",
        "the pods of its job, where the cluster's network enforces policies",
        "leaves it; `network: Open` lets everybody",
        everywhere=True,
    )
    HOSTNAME = Row(
        "`hostname`, `subdomain` in a template",
        "kept",
        "replaced, for addresses are made of them",
        "removes them",
    )
    LABELS = Row(
        "labels of pods",
        "`training.kubeflow.org/...`",
        "`tfparallel.dev/...`",
        "renames them in affinity, spread constraints and field paths; change what else selects"
        " by them",
    )
    DEADLINE = Row(
        "`activeDeadlineSeconds`",
        "looked at when something happens: a quiet job goes on",
        "it ends the job on time",
        "leaves it",
    )
    SCHEDULING_POLICY = Row(
        "`schedulingPolicy`",
        "pods start together or not at all, where the operator has a gang scheduler",
        "so too; without a gang scheduler the job is refused",
        "leaves it: set `scheduling.gang`, or start the operator with `--gang-scheduler`",
    )
    POD_GROUP = Row(
        "annotation `scheduling.k8s.io/group-name`",
        "the operator makes the PodGroup, where it has a gang scheduler",
        "nobody makes it",
        "leaves it: make the PodGroup, or remove the annotation",
    )
    MANAGED_BY = Row(
        "`managedBy: kubeflow.org/training-operator`",
        "TFJob's own operator runs the job",
        "this one does",
        "removes it",
    )
    QUEUE = Row(
        "label `kueue.x-k8s.io/queue-name`",
        "Kueue suspends the job until there is quota; where there is no Kueue it starts at once",
        "it waits until its Workload is admitted, also where there is no Kueue; `suspend` is yours",
        "leaves it: remove `suspend: true` if Kueue wrote it",
    )
    ROLE_KEYS = Row(
        "role keys",
        "any case; others get pods that nobody looks at",
        "`Chief`, `Master`, `Worker`, `PS`, `Evaluator`",
        "writes them so, and refuses others",
    )
    NO_REPLICAS = Row(
        "a role of 0 replicas",
        "no pods",
        "refused",
        "removes the role",
    )
    CLEAN_WORD = Row(
        "another word as `cleanPodPolicy`",
        "`All`",
        "refused",
        "writes `All`; correct it if you meant another",
    )
    SUCCESS_WORD = Row(
        "another word as `successPolicy`",
        "worker 0 decides",
        "refused",
        "removes it; write `AllWorkers` if you meant it",
    )
    MISPLACED = Row(
        "fields of `runPolicy` that stand in `spec`",
        "dropped in silence; the older tf-operator read them",
        "refused",
        "moves them to where they count",
    )
    UNKNOWN = Row(
        "unknown fields",
        "dropped in silence",
        "refused by `kubectl`",
        "removes them",
    )
    EXPORTED = Row(
        "`status`, and metadata that the cluster wrote",
        "of the TFJob",
        "of another object",
        "removes them",
    )


def table() -> str:
    """Return all differences as a Markdown table."""
    lines = ["| | TFJob | TFParallelJob | `tfparallel convert` |", "|---|---|---|---|"]
    for difference in Difference:
        row = difference.value
        lines.append(f"| {row.subject} | {row.theirs} | {row.ours} | {row.done} |")
    return "\n".join(lines) + "\n"
