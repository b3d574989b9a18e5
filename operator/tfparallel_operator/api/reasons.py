"""What each condition and reason means, and what to do: the tables of docs/reference/reasons.md."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from tfparallel_operator.api import names

_NORMAL: Literal["Normal"] = "Normal"
_WARNING: Literal["Warning"] = "Warning"


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """What a reason means."""

    meaning: str
    remedy: str = ""
    """What to do; empty where nothing needs to be done."""
    event: Literal["Normal", "Warning", ""] = _NORMAL
    """The type of its Event; empty for reasons that only conditions have."""


def _warning(meaning: str, remedy: str) -> Explanation:
    return Explanation(meaning, remedy, _WARNING)


CONDITIONS: Mapping[names.ConditionType, str] = {
    names.ConditionType.RESUMABLE: "A restart resumes from a checkpoint. False: it starts at"
    " step 0. Only with `spec.trainer`.",
    names.ConditionType.SPEC_INVALID: "The newest spec cannot be used: the job continues with its"
    " last valid one.",
    names.ConditionType.SUSPENDED: "`runPolicy.suspend` is true: the pods are deleted.",
    names.ConditionType.ADMITTED: "The queue lets the job run. Only of jobs in a queue.",
    names.ConditionType.RUNNING: "Every training replica runs or has completed. With parameter"
    " servers: chief, servers and at least one worker. If training is slow, the message says why.",
    names.ConditionType.RESTARTING: "The operator restarts replicas, and not all of them run yet.",
    names.ConditionType.TRAINING_STALLED: "Training reported progress, then made none for"
    " `runPolicy.stallDeadlineSeconds`.",
    names.ConditionType.SEPARATE_TRAINING: "The replicas of a script train models of their own, and"
    " `onSeparateTraining` is `Continue`. It stays true when the job has ended.",
    names.ConditionType.EXCEEDS_MEMORY: "The planner expects a device of a split model to need more"
    " memory than it has. Training continues. It stays true when the job has ended.",
    names.ConditionType.CREATION_REFUSED: "The job cannot get pods. The message says why, and"
    " who has to act. The operator tries again.",
    names.ConditionType.CONTESTED: "Another installation of the operator watches the job, too, and"
    " leaves it alone. The condition is removed 21 minutes after that installation last asked.",
    names.ConditionType.SUCCEEDED: "The job succeeded.",
    names.ConditionType.FAILED: "The job failed and does not run again.",
}
"""What it means that a condition is true."""

REASONS: Mapping[names.Reason, Explanation] = {
    names.Reason.JOB_STARTED: Explanation(
        "The first attempt starts, or the job starts after you corrected its manifest."
    ),
    names.Reason.REPLICAS_RUNNING: Explanation("All replicas that training needs run."),
    names.Reason.REPLICAS_PENDING: _warning(
        "Replicas wait. The message has the words of the scheduler or kubelet. The Event says that"
        " the operator lacks rights.",
        "Follow the message; `tfparallel why` adds evidence.",
    ),
    names.Reason.REPLICA_FAILED: _warning(
        "A replica exited with an error. The message has the exit code, and the replica's last"
        " sentence.",
        "Look up the exit code, and follow the sentence.",
    ),
    names.Reason.REPLICA_LOST: _warning(
        "A pod was deleted, evicted, or lost with its node, or its program asked to run again. The"
        " message says how it ended. The operator runs it again.",
        "If it repeats, follow the message: [ends of pods](ends.md) lists each.",
    ),
    names.Reason.RESTART_POLICY_IGNORED: _warning(
        "A container of a template has a `restartPolicy` or `restartPolicyRules` of its own. The"
        " operator removes it.",
        "Remove the field. For a sidecar, use an init container with `restartPolicy: Always`.",
    ),
    names.Reason.VERIFICATION_FAILED: _warning(
        "A step differed from the same step of one process on the same examples. The message names"
        " what differs and the likely cause. The job does not run again: the same would happen.",
        'Do what the message says. `trainer.verify: "Off"` trains without the comparison.',
    ),
    names.Reason.SEPARATE_MODELS: _warning(
        "Each replica of a script trains a model of its own. The message has the script's line.",
        "[Train one model together](../how-to/old-scripts.md#replicas-that-train-separate-models).",
    ),
    names.Reason.MODEL_TOO_LARGE: _warning(
        "The tensors of a split model exceed the memory of its devices, by the planner's estimate."
        " The message has the figures, and the changes with which the model fits.",
        "[Make one of the changes](../how-to/planner.md#if-a-model-does-not-fit).",
    ),
    names.Reason.SOURCE_FAILED: _warning(
        "The init container could not fetch the job's code or packages.",
        "Correct `trainer.source` or the requirements that the message names.",
    ),
    names.Reason.HUNG_AGAIN: _warning(
        "Training hung twice after the same step, or in the same part of its start or end. The"
        " message and `status.hang` have the calls where it stood. The job does not run again.",
        "Correct what hangs there, or raise the limit that the message names if it is only slow.",
    ),
    names.Reason.BACKOFF_LIMIT_EXCEEDED: _warning(
        "The job failed more often than `runPolicy.backoffLimit`.",
        "Correct what the last failure names, or raise the limit.",
    ),
    names.Reason.FAILURE_POLICY: _warning(
        "A rule of `runPolicy.failurePolicy` fails the job, or ignores a lost replica.",
        "Change the rule if you want something else.",
    ),
    names.Reason.DEADLINE_EXCEEDED: _warning(
        "The job ran longer than `runPolicy.activeDeadlineSeconds`.",
        "Raise the deadline, or train for fewer epochs.",
    ),
    names.Reason.PENDING_DEADLINE_EXCEEDED: _warning(
        "Pods waited longer than `runPolicy.pendingDeadlineSeconds`. The message says for what.",
        "Follow the message, or raise the deadline.",
    ),
    names.Reason.STALL_DEADLINE_EXCEEDED: _warning(
        "Training made no progress for `runPolicy.stallDeadlineSeconds`.",
        "Read the last lines of the coordinator, or raise the deadline if steps take so long.",
    ),
    names.Reason.QUOTA_EXCEEDED: _warning(
        "A quota of the namespace is used up, so the API server refuses pods.",
        "Request less, delete jobs that have ended, or raise the quota.",
    ),
    names.Reason.PRIORITY_CLASS_NOT_FOUND: _warning(
        "The template names a PriorityClass that does not exist.",
        "Create the PriorityClass, or correct `priorityClassName`.",
    ),
    names.Reason.TOO_MANY_REQUESTS: _warning(
        "The API server is busy, and said when to try again.", "Wait."
    ),
    names.Reason.SERVER_UNAVAILABLE: _warning(
        "The API server fails when it is to create an object of the job. Often a webhook does not"
        " answer it. The message is the server's.",
        "Have an administrator repair what the message names: the operator tries again by itself.",
    ),
    names.Reason.ADMISSION_DENIED: _warning(
        "A webhook, a policy, or a missing service account refuses pods. The message is theirs.",
        "Change what the message names.",
    ),
    names.Reason.DEFAULTS_CONFLICT: _warning(
        "What the cluster adds to a pod, such as defaults of a LimitRange, makes it invalid. The"
        " message is the API server's.",
        "Set `resources` of the role, or have the LimitRange or webhook corrected.",
    ),
    names.Reason.JOB_RESTRICTED: _warning(
        "The job uses what the chart's `jobs.restrictions` forbids. It gets no new pods.",
        "Remove what the message names, or have an administrator change the restriction.",
    ),
    names.Reason.OTHER_INSTALLATION: _warning(
        "Two installations of the operator watch the job's namespace. One of them acts, the other"
        " leaves the job alone.",
        "Have each watch namespaces of its own (`watchNamespaces`), or uninstall one.",
    ),
    names.Reason.HOST_PORTS_TAKEN: _warning(
        "Other jobs with `hostNetwork` use the ports that this job needs, or its namespace has all"
        " that it may have.",
        "Wait for these jobs, request fewer replicas, or turn `hostNetwork` off.",
    ),
    names.Reason.GANG_SCHEDULER_NOT_INSTALLED: _warning(
        "The cluster has no PodGroups of the gang scheduler that the job names.",
        "Install the scheduler, or change `scheduling.gang`.",
    ),
    names.Reason.JOB_QUEUED: Explanation(
        "The job waits in a queue of Kueue. The message is Kueue's.",
        "Wait for other jobs, request less, or raise the quota of the queue.",
    ),
    names.Reason.JOB_ADMITTED: Explanation("The queue lets the job run."),
    names.Reason.JOB_EVICTED: Explanation(
        "The queue took the job's place: the operator deletes its pods. The message is Kueue's.",
        "Wait: the queue admits the job again.",
    ),
    names.Reason.KUEUE_NOT_INSTALLED: _warning(
        "The job has the label of a queue, and the cluster has no Kueue.",
        "Install Kueue, or create the job without the label.",
    ),
    names.Reason.REPLICAS_CREATED: Explanation(
        "The API server refused pods, and has accepted all of them since.", event=""
    ),
    names.Reason.POD_FORCED: _warning(
        "The operator deleted a pod by force, because its node is dead.",
        "Repair the node, or remove it from the cluster.",
    ),
    names.Reason.NODE_AVOIDED: _warning(
        "Replicas were lost on a node again, and the node may be at fault. New pods avoid it.",
        "Find out what is wrong with the node, or set"
        " [`scheduling.avoidFailedNodes`](../explanation/restarts.md#nodes-that-fail-again) to"
        " false.",
    ),
    names.Reason.NODE_RELEASED: _warning(
        "Pods found no node but those that the job avoids. The job no longer avoids them, and their"
        " losses count from zero.",
        "Repair these nodes, or add others.",
    ),
    names.Reason.CHIEF_SUCCEEDED: Explanation("The chief exited with 0: the job succeeded."),
    names.Reason.WORKERS_SUCCEEDED: Explanation(
        "Worker 0, or with `successPolicy: AllWorkers` every worker, exited with 0: the job"
        " succeeded."
    ),
    names.Reason.JOB_SUSPENDED: Explanation(
        "You suspended the job, or a signal such as Ctrl-C stopped its local run.",
        "`tfparallel resume JOB` starts it again. To continue a local run, give its folder:"
        " `tfparallel run JOB.yaml --output FOLDER`.",
    ),
    names.Reason.JOB_RESUMED: Explanation("You resumed the job: a new attempt starts."),
    names.Reason.REPLICAS_SCALED: Explanation(
        "You changed the number of workers: a new attempt, or a new chief, starts."
    ),
    names.Reason.JOB_FINISHED: Explanation("The condition ended because the job did.", event=""),
    names.Reason.INVALID_SPEC: _warning(
        "The API server accepted the manifest, and the operator cannot use it.",
        "Correct the field that the message names.",
    ),
    names.Reason.STATUS_REFUSED: _warning(
        "The API server refuses the job's status, because the job breaks a rule that its definition"
        " has got since. What the status should say is in Events.",
        "Delete the job, and apply it again with what the message asks for.",
    ),
    names.Reason.STATUS_UNREADABLE: _warning(
        "Somebody has written a status that the operator cannot read. The operator leaves the job"
        " alone, and its pods run on.",
        "Correct the field that the message names by `kubectl edit --subresource=status`, or delete"
        " the job and apply it again.",
    ),
    names.Reason.SPEC_CORRECTED: Explanation("The operator can use the manifest again."),
    names.Reason.INVALID_TEMPLATE: _warning(
        "The API server refused a pod of the template. The message is its own. The job fails,"
        " unless the API server accepted pods of the role before.",
        "Correct the field of the template that the message names.",
    ),
    names.Reason.NAME_CONFLICT: _warning(
        "Objects that are not the job's own have names that it needs. The message lists them. The"
        " job waits.",
        "Delete these objects with the command in the message, or give the job another name.",
    ),
    names.Reason.NAME_HELD: Explanation(
        "An object of an earlier job of this name, or of an earlier attempt, is not gone yet. The"
        " job waits."
    ),
    names.Reason.DELETION_STUCK: _warning(
        "An object that is being deleted stays, because of a finalizer, or because its node does"
        " not end it. The job waits for its name.",
        "Follow the message: it names the finalizer or the node.",
    ),
    names.Reason.CHECKPOINT_CONFIGURED: Explanation(
        "The job sets `spec.trainer.checkpoint`.", event=""
    ),
    names.Reason.NO_CHECKPOINT: Explanation(
        "The job does not set `spec.trainer.checkpoint`.",
        "Set it, so that a restart resumes.",
        event="",
    ),
}
