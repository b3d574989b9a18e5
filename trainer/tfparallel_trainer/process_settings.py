"""The settings of this process: environment and job file, read once and checked."""

import dataclasses
import hashlib
import json
import math
import os
import pathlib
from collections.abc import Mapping

import pydantic

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.contract import environment, job_file, outputs
from tfparallel_trainer.contract import progress as protocol
from tfparallel_trainer.contract.job_file import Strategy
from tfparallel_trainer.storage import bucket, directory, prefix
from tfparallel_trainer.storage import folder as folders

_GRACE_SECONDS = 30
"""The grace period that Kubernetes gives a pod by default."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProgressTarget:
    """The target of reports of progress."""

    url: str
    token_file: pathlib.Path | None
    ca_file: pathlib.Path | None
    interval_seconds: float = protocol.MIN_INTERVAL_SECONDS
    """Shortest time between two reports, except before the last one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Everything on which a run depends, except the user's module."""

    job: job_file.JobFile
    digest: str
    """SHA-256 of the job's content, as hexadecimal digits."""
    cluster: tasks.Cluster
    source_dir: pathlib.Path
    output_dir: pathlib.Path
    job_uid: str
    """Empty outside a cluster."""
    attempt: int | None
    """None: use the next free number."""
    cpu_devices: int
    logs_steps: bool
    """Whether the chief writes a line for each step."""
    progress: ProgressTarget | None
    first_epoch: int = 0
    """The epoch with which training begins, unless a checkpoint names another."""
    grace_seconds: int = _GRACE_SECONDS
    """How long after SIGTERM this process is killed."""
    namespace: str = ""
    """Namespace of a job that keeps its results in a bucket; empty in local runs."""
    same_dropout: bool = False
    """Whether parts of a tensor get the same dropout as the whole tensor."""

    @property
    def module_digest(self) -> str:
        """SHA-256 of the user's module; of nothing if it cannot be read, which shows later."""
        path = self.source_dir / self.job.trainer.module
        return hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()

    @property
    def module_sum(self) -> str:
        """The digest and the name of the user's module, as sha256sum writes them."""
        return f"{self.module_digest}  {self.job.trainer.module}\n"

    @property
    def results(self) -> directory.Directory:
        """Where checkpoints and results are kept: the output folder, or below the job's URI."""
        checkpoint = self.job.trainer.checkpoint
        if checkpoint is None or checkpoint.uri is None:
            return folders.Folder(self.output_dir)
        return bucket.Bucket(prefix.of_job(checkpoint.uri, self.namespace, self.job.name))

    @property
    def checkpoints(self) -> directory.Directory:
        """The directory of the checkpoints."""
        return self.results.child(outputs.CHECKPOINTS)

    @property
    def uses_servers(self) -> bool:
        """Whether servers hold the weights and workers train without waiting for each other."""
        return self.job.strategy is Strategy.PARAMETER_SERVER

    @property
    def divides_model(self) -> bool:
        """Whether each device has a part of the model instead of all of it."""
        return self.job.strategy is Strategy.MODEL_SPLIT

    @property
    def evaluates(self) -> bool:
        """Whether this process is the evaluator, which trains nothing."""
        return self.cluster.task.role == tasks.EVALUATOR

    @property
    def under_strategy(self) -> bool:
        """Whether steps run by `tf.distribute.Strategy.run` instead of on the mesh."""
        return self.job.strategy in (Strategy.CUSTOM, Strategy.TPU)

    @property
    def uses_tpu(self) -> bool:
        """Whether a TPU trains, from this one process."""
        return self.job.strategy is Strategy.TPU


def read(env: Mapping[str, str] = os.environ) -> Settings:
    """Read the environment that `contract.environment` names, or raise BadConfigurationError."""
    job = _job(_required(env, environment.JOB_FILE, "the path of the job file"))
    source = pathlib.Path(_required(env, environment.SOURCE_DIR, "the folder of the module"))
    results = _required(env, environment.OUTPUT_DIR, "the folder for the results")
    output = folder(results, f"${environment.OUTPUT_DIR}")
    return Settings(
        job=job,
        digest=_digest(job),
        cluster=tasks.parse(tf_config(env)),
        source_dir=source,
        output_dir=output,
        job_uid=env.get(environment.JOB_UID, ""),
        attempt=positive(env, environment.ATTEMPT),
        cpu_devices=cpu_devices(env),
        logs_steps=_switch(env, environment.STEP_LOG),
        progress=progress_target(env),
        grace_seconds=grace_seconds(env),
        namespace=env.get(environment.JOB_NAMESPACE, ""),
        same_dropout=_switch(env, environment.SAME_DROPOUT),
    )


def _digest(job: job_file.JobFile) -> str:
    """Leave out the source of the code, because a restart compares the module itself."""
    unread = {"trainer": {"source": {"archive", "requirements"}}}
    content = job.model_dump_json(by_alias=True, exclude=unread)
    return hashlib.sha256(content.encode()).hexdigest()


def tf_config(env: Mapping[str, str]) -> str | None:
    """TF_CONFIG with the cluster, which the replicas of a large job share as a file."""
    text, path = env.get(environment.TF_CONFIG), env.get(environment.CLUSTER_FILE)
    if not text or not path:
        return text
    try:
        config = json.loads(text)
        if "cluster" in config:
            return text
        cluster = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        if config["task"]["type"] != tasks.EVALUATOR:
            cluster.pop(tasks.EVALUATOR, None)
        if "worker" in cluster:
            cluster["worker"] = cluster["worker"][: positive(env, environment.WORKERS)]
    except OSError as error:
        raise errors.BadConfigurationError(
            f"${environment.CLUSTER_FILE} names {path}, which cannot be read: {error.strerror}."
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise errors.BadConfigurationError(
            f"TF_CONFIG is {text!r} and ${environment.CLUSTER_FILE} is {path}: write a task in the "
            'one, and a cluster, such as {"worker": ["host:port", …]}, in the other.'
        ) from error
    return json.dumps({"cluster": cluster, **config})


def folder(path: str | os.PathLike[str], name: str) -> pathlib.Path:
    """Return the folder of a setting or argument; an address of a bucket is refused."""
    text = os.fspath(path)
    if "://" in text:
        raise errors.BadConfigurationError(
            f"{name} is {text!r}, an address, and must be a local folder. For a bucket, set "
            "trainer.checkpoint.uri of a job, or mount it by a claim of a CSI driver."
        )
    return pathlib.Path(path)


def _required(env: Mapping[str, str], name: str, meaning: str) -> str:
    value = env.get(name, "")
    if not value:
        raise errors.BadConfigurationError(f"${name} is not set: give it {meaning}.")
    return value


def positive(env: Mapping[str, str], name: str) -> int | None:
    """Read a number from 1 on; None: the variable is not set.

    Anything else is a BadConfigurationError.
    """
    value = env.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise errors.BadConfigurationError(f"${name} is {value!r}: give a number from 1.")
    return int(value)


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    value = env.get(name)
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise errors.BadConfigurationError(f"${name} is {value!r}: give seconds, such as 0.1.")
    return seconds


def cpu_devices(env: Mapping[str, str]) -> int:
    """Read how many devices a CPU is divided into, or raise BadConfigurationError."""
    return positive(env, environment.CPU_DEVICES) or 1


def grace_seconds(env: Mapping[str, str]) -> int:
    """Read how long after SIGTERM this process is killed, or raise BadConfigurationError."""
    value = env.get(environment.GRACE_SECONDS, str(_GRACE_SECONDS))
    if not value.isdecimal():
        raise errors.BadConfigurationError(
            f"${environment.GRACE_SECONDS} is {value!r}: give whole seconds, such as 30."
        )
    return int(value)


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "0")
    if value not in ("0", "1"):
        raise errors.BadConfigurationError(f"${name} is {value!r}: give 1, or 0 for not.")
    return value == "1"


def _job(path: str) -> job_file.JobFile:
    try:
        content = pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise errors.BadConfigurationError(
            f"${environment.JOB_FILE} names {path}, which cannot be read: {error.strerror}."
        ) from error
    try:
        return job_file.JobFile.model_validate_json(content)
    except pydantic.ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(str(part) for part in fault['loc']) or 'the file'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise errors.BadConfigurationError(
            f"The job file {path} is not valid: {faults}."
        ) from error


def progress_target(env: Mapping[str, str]) -> ProgressTarget | None:
    """The target of progress in the environment."""
    return _target(env, environment.PROGRESS_URL)


def agent_target(env: Mapping[str, str]) -> ProgressTarget | None:
    """The target of an agent's questions in the environment."""
    return _target(env, environment.AGENT_URL)


def _target(env: Mapping[str, str], name: str) -> ProgressTarget | None:
    url = env.get(name)
    if not url:
        return None
    token = env.get(environment.PROGRESS_TOKEN_FILE)
    authorities = env.get(environment.PROGRESS_CA_FILE)
    return ProgressTarget(
        url=url,
        token_file=pathlib.Path(token) if token else None,
        ca_file=pathlib.Path(authorities) if authorities else None,
        interval_seconds=_seconds(env, environment.PROGRESS_SECONDS)
        or protocol.MIN_INTERVAL_SECONDS,
    )
