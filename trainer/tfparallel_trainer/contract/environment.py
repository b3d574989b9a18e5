"""Names of the environment variables that a replica is started with."""

TF_CONFIG = "TF_CONFIG"
"""TensorFlow's own: the cluster and this replica's task, as JSON."""

HASH_SEED = "PYTHONHASHSEED"
"""Python's own: the order of sets of texts follows from it, and has to be one in all processes."""

CLUSTER_FILE = "TFPARALLEL_CLUSTER_FILE"
"""Path of a file with the cluster, as JSON like that of TF_CONFIG, where many replicas share it.
TF_CONFIG then has the task alone. Absent: TF_CONFIG has both."""

WORKERS = "TFPARALLEL_WORKERS"
"""How many workers of the cluster file there are, from the first one; absent: all."""

JOB_FILE = "TFPARALLEL_JOB_FILE"
"""Path of the job file (see `job_file`)."""

SOURCE_DIR = "TFPARALLEL_SOURCE_DIR"
"""Folder that the user's module is looked up in."""

OUTPUT_DIR = "TFPARALLEL_OUTPUT_DIR"
"""Folder for checkpoints, the final model and logs; shared by all replicas when it is kept."""

ATTEMPT = "TFPARALLEL_ATTEMPT"
"""Number of this attempt, from 1; grows with every restart."""

JOB_UID = "TFPARALLEL_JOB_UID"
"""Uid of the job: tells a job apart from an earlier one of the same name."""

JOB_NAMESPACE = "TFPARALLEL_JOB_NAMESPACE"
"""Namespace of a job that keeps its results in a bucket; absent in local runs."""

JOB_KEY = "TFPARALLEL_JOB_KEY"
"""What the processes of a job prove to each other that they know; absent: the job's uid."""

PROGRESS_URL = "TFPARALLEL_PROGRESS_URL"
"""Where the coordinator POSTs its progress; absent: it does not."""

PROGRESS_TOKEN_FILE = "TFPARALLEL_PROGRESS_TOKEN_FILE"  # noqa: S105 (a path, not a secret)
"""File with the bearer token for the progress address; read again for each POST."""

PROGRESS_CA_FILE = "TFPARALLEL_PROGRESS_CA_FILE"
"""File with the certificates that the progress address is trusted by."""

PROGRESS_SECONDS = "TFPARALLEL_PROGRESS_SECONDS"
"""Shortest time between two reports, in seconds, such as 0.1; absent:
`progress.MIN_INTERVAL_SECONDS`.
One machine that runs one job takes them more often than a cluster's operator."""

REPLICA_ATTEMPT = "TFPARALLEL_REPLICA_ATTEMPT"
"""Restarts of this replica within the attempt, when its container starts; absent: 0."""

AGENT_URL = "TFPARALLEL_AGENT_URL"
"""Where the first process of a container, the agent, asks what follows a run of the trainer.
It uses the token and the certificates of progress. Absent: the container ends with the trainer."""

GRACE_SECONDS = "TFPARALLEL_GRACE_SECONDS"
"""Whole seconds from SIGTERM until the replica is killed; absent: 30, Kubernetes' default."""

DOCUMENTATION = "TFPARALLEL_DOCUMENTATION"
"""Address of the published documentation; absent or empty: messages name files."""

STEP_LOG = "TFPARALLEL_STEP_LOG"
"""1: the chief writes a line for each step into `outputs.STEP_LOG`; absent: it does not."""

FAILURE_FILE = "TFPARALLEL_FAILURE_FILE"
"""File that takes the sentence of the error that a replica ends with; absent: its log tells it."""

FULL_DISK_IS_FINAL = "TFPARALLEL_FULL_DISK_IS_FINAL"
"""1: nobody enlarges a full disk while the job waits, as on one machine, so it ends with an exit
code that is not retried. Absent: the job runs again."""

ON_SEPARATE_TRAINING = "TFPARALLEL_ON_SEPARATE_TRAINING"
"""What a script whose replicas train models of their own does at its first step: a value of
`separate_training.OnSeparateTraining`. Absent: nobody looks."""

CPU_DEVICES = "TFPARALLEL_CPU_DEVICES"
"""On a machine without GPUs: how many devices the CPU is divided into, to try Mirrored out (1)."""

SAME_DROPOUT = "TFPARALLEL_SAME_DROPOUT"
"""1: under ModelSplit, parts of a tensor get the dropout of the whole tensor in one process, to
compare meshes. Absent: each part draws its own, which is faster."""
