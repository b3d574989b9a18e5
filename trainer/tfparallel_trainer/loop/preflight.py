"""Refuses what is impossible before TensorFlow is imported."""

import os

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import tpu_name
from tfparallel_trainer.contract import environment, job_file
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import results
from tfparallel_trainer.storage import address, connection

_NEEDED = {"worker": "computes gradients", tasks.SERVER: "holds the weights"}


def check(settings: Settings) -> None:
    """Refuse (BadConfigurationError) what is impossible before anything is started."""
    _check_bucket(settings)
    _check_module(settings)
    check_settings(settings)


def check_settings(settings: Settings) -> None:
    """Refuse what the settings alone show to be impossible; nothing is read, no thread starts."""
    strategy, processes = settings.job.strategy, len(settings.cluster.tasks)
    _check_evaluator(settings)
    if settings.evaluates:
        return
    _check_compilation(settings)
    if settings.uses_servers:
        _check_servers(settings)
        return
    if settings.cluster.with_role(tasks.SERVER):
        raise errors.BadConfigurationError(
            f"TF_CONFIG has the role {tasks.SERVER}, which strategy '{strategy}' does not use: "
            "remove the servers, or set strategy to ParameterServer."
        )
    if settings.job.trainer.max_staleness is not None:
        raise errors.BadConfigurationError(
            f"trainer.maxStaleness is given, and strategy is '{strategy}', where no gradient is "
            "stale: remove it, or set strategy to ParameterServer."
        )
    if strategy is job_file.Strategy.MIRRORED and processes > 1:
        raise errors.BadConfigurationError(
            f"strategy is 'Mirrored', which is for one process, and TF_CONFIG has {processes}: "
            "use MultiWorkerMirrored, or one replica."
        )
    if settings.under_strategy:
        _check_under_strategy(settings)


def _check_bucket(settings: Settings) -> None:
    """Refuse a bucket that cannot be used, before minutes are spent on data and model."""
    checkpoint = settings.job.trainer.checkpoint
    if checkpoint is None or checkpoint.uri is None:
        return
    try:
        connection.check(address.Address.parse(checkpoint.uri))
    except connection.RefusedError as error:
        raise errors.BadConfigurationError(
            f"trainer.checkpoint.uri is {checkpoint.uri!r}, and {error}."
        ) from error
    except OSError as error:
        raise errors.StorageError(
            f"trainer.checkpoint.uri is {checkpoint.uri!r}, which does not answer ({error}): see "
            "the server's address and the network."
        ) from error


def _check_module(settings: Settings) -> None:
    """Refuse a module that would not be trained, because another one was, to the end."""
    ended = results.end_of(settings)
    if ended is None or ended.module_digest in (None, settings.module_digest):
        return
    if settings.job_uid and ended.job_uid == settings.job_uid:
        return  # the job itself has ended, and its source was changed afterwards
    raise errors.BadConfigurationError(
        f"{settings.job.trainer.module} has changed since this job ended after {ended.steps} "
        f"steps, and {settings.results} holds the results. Give trainer.checkpoint another claim "
        "or uri (or --output) to train what it says now, or remove these results."
    )


def _check_compilation(settings: Settings) -> None:
    """Refuse jitCompile where no step would be compiled; a TPU compiles each."""
    strategy = settings.job.strategy
    mirrored = (job_file.Strategy.MIRRORED, job_file.Strategy.MULTI_WORKER_MIRRORED)
    is_on = settings.job.trainer.jit_compile is job_file.JitCompile.ON
    if is_on and not settings.uses_tpu and strategy not in mirrored:
        raise errors.BadConfigurationError(
            f"trainer.jitCompile is 'On', and strategy '{strategy}' does not use XLA: remove it, "
            "or set strategy to Mirrored or MultiWorkerMirrored."
        )


def _check_under_strategy(settings: Settings) -> None:
    strategy, processes = settings.job.strategy, len(settings.cluster.tasks)
    if settings.job.trainer.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE:
        raise errors.BadConfigurationError(
            f"trainer.onNonFiniteLoss is 'Continue', and strategy '{strategy}' cannot leave out an "
            "update: remove it, or set strategy to Mirrored or MultiWorkerMirrored."
        )
    if settings.uses_tpu:
        tpu_name.find(os.environ)
        if processes > 1:
            raise errors.BadConfigurationError(
                f"strategy is 'TPU', which drives a whole TPU from one process, and TF_CONFIG has "
                f"{processes}: use one replica."
            )


def _check_evaluator(settings: Settings) -> None:
    if settings.evaluates and not settings.job.evaluator:
        raise errors.BadConfigurationError(
            "TF_CONFIG starts this process as an evaluator, and the job file says evaluator: false."
            " Then the replicas that train evaluate too: set it to true."
        )
    if settings.job.evaluator and settings.job.trainer.checkpoint is None:
        raise errors.BadConfigurationError(
            "The job has an evaluator, which reads checkpoints, and trainer.checkpoint is not "
            "given: give it, or remove the evaluator."
        )


def _check_servers(settings: Settings) -> None:
    missing = [
        f"{role} ({meaning})"
        for role, meaning in _NEEDED.items()
        if not settings.cluster.with_role(role)
    ]
    # Where workers come and go, servers are told of no worker.
    if missing and settings.cluster.task.role == "chief":
        raise errors.BadConfigurationError(
            f"strategy is 'ParameterServer', and TF_CONFIG has no {' and no '.join(missing)}: "
            "give the job replicas of each of these roles."
        )
    if not settings.cluster.with_role("chief"):
        raise errors.BadConfigurationError(
            "strategy is 'ParameterServer', and TF_CONFIG has no chief, which gives out the work: "
            "add a chief."
        )
    if settings.job.trainer.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE:
        raise errors.BadConfigurationError(
            "trainer.onNonFiniteLoss is 'Continue', and with strategy 'ParameterServer' a worker "
            "applies its gradient before the chief sees the loss: remove it."
        )
    if settings.cpu_devices > 1:
        raise errors.BadConfigurationError(
            f"${environment.CPU_DEVICES} is {settings.cpu_devices}, and strategy 'ParameterServer' "
            "uses one device of each worker: set devices to 1 and use more workers."
        )
