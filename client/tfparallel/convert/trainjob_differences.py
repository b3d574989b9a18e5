"""What a converted TrainJob does otherwise than the TrainJob did: the one place that says so.

`convert` reports those that concern a job, and docs/how-to/trainjob.md shows them all.
"""

from tfparallel.convert import conversion
from tfparallel.convert.tfjob_differences import TFJobDifference


class TrainJobDifference(conversion.Difference):
    """All differences, in the order of the page."""

    RUNTIME = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "`runtimeRef`",
        "the runtime adds image, command, volumes, sidecars and policies",
        "the job says everything",
        "removes it: add what the runtime sets",
    )
    VARIABLES = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "variables of the framework",
        "those of the runtime, such as `PET_NNODES` or MPI's hostfile; no `TF_CONFIG`",
        "`TF_CONFIG`",
        "leaves the command: it has to run TensorFlow",
    )
    NUM_NODES = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "absent `numNodes`",
        "as many as the runtime says",
        "1",
        "writes 1; correct it if the runtime has more",
    )
    RESTARTS = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "a failed container",
        "as the runtime says; by default it runs again alone, up to 6 times",
        "all replicas run again together, up to 3 times",
        "leaves it: the script has to resume from a checkpoint; `runPolicy.backoffLimit` bounds it",
    )
    INITIALIZER = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "`initializer`",
        "downloads data and models to `/workspace` before training",
        "no such step",
        "removes it: read from the bucket, or mount a claim that holds the files",
    )
    OTHER_TARGETS = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "patches of what only the runtime has",
        "change its other jobs and containers",
        "no runtime",
        "removes them: write these containers into the template",
    )
    POD_LABELS = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "labels of pods",
        "`jobset.sigs.k8s.io/...`, `trainer.kubeflow.org/...`",
        "`tfparallel.dev/...`",
        "leaves selectors: change what selects by them",
    )
    QUEUE = TFJobDifference.QUEUE.value
    QUEUE_PATCHES = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "patches and scheduling gates of Kueue",
        "what Kueue decided when it admitted the job",
        "Kueue decides again",
        "removes them",
    )
    PROCESSES = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "`numProcPerNode`",
        "processes in each pod",
        "one process, which uses all GPUs of its pod",
        "removes it",
    )
    SUCCESS = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "the end of several nodes",
        "all have to succeed, unless the runtime says otherwise",
        "worker 0 decides",
        "writes `AllWorkers`",
    )
    DEFAULT_SUCCESS = conversion.DifferenceRow(
        conversion.Severity.BEHAVIOR,
        "the end of several nodes",
        "all have to succeed, unless the runtime says otherwise",
        "worker 0 decides",
        "with `--defaults tfparallel` leaves it out; write `AllWorkers` for TrainJob's",
    )
    LABELS = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`labels`, `annotations` in spec",
        "of the JobSet and its Jobs",
        "of the job itself",
        "moves them to `metadata`",
    )
    MANAGED_BY = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`managedBy: trainer.kubeflow.org/trainjob-controller`",
        "the Trainer runs the job",
        "this operator does",
        "removes it",
    )
    UNKNOWN = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "fields that convert does not know",
        "as their version of the Trainer says",
        "refused by `kubectl`",
        "removes them: carry over by hand what you need",
    )
    EXPORTED = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "`status`, and metadata that the cluster wrote",
        "of the TrainJob",
        "of another object",
        "removes them",
    )
    CONTAINER = conversion.DifferenceRow(
        conversion.Severity.COSMETIC,
        "the container that trains",
        "`node`",
        "`tensorflow`",
        "renames it",
        is_general=True,
    )
    ADDRESSES = conversion.DifferenceRow(
        conversion.Severity.BREAKING,
        "addresses of pods",
        "`job-node-0-1.job`",
        "`job-worker-1.job`",
        "leaves it: change what names the old ones",
        is_general=True,
    )
    NETWORK = TFJobDifference.NETWORK.value
