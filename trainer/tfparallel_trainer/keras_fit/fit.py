"""`fit` and `start`, what a script calls: its arguments are a job, run by the loop of all jobs."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, process_settings, tasks, user
from tfparallel_trainer.contract import environment, job_file
from tfparallel_trainer.engines import setup
from tfparallel_trainer.engines.mesh import mesh_run as mesh
from tfparallel_trainer.engines.servers import control
from tfparallel_trainer.engines.servers import parameter_server_run as servers
from tfparallel_trainer.keras_fit import callbacks as callbacks_of
from tfparallel_trainer.keras_fit import distribution, fit_inputs, model_access, models
from tfparallel_trainer.lifecycle import stall, termination
from tfparallel_trainer.loop import exit_report, observer, preflight, run
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console
from tfparallel_trainer.scripts import explanation, first_step

_WAIT_SECONDS = 600
_STEP_SECONDS = 1800


def start(start_timeout_seconds: int = _WAIT_SECONDS) -> None:
    """Join the peers that TF_CONFIG names; call it before anything uses TensorFlow.

    Only scripts need it that run on several processes and build their model before `fit`. Keras'
    own fit is refused from then on: each process would train a model of its own. If the peers do
    not come, or TensorFlow was used before, it is a TrainerError.
    """
    if distribution.in_job():
        distribution.exit_by_contract()
    cluster = distribution.described()
    if cluster.alone:
        return
    keras.Model.fit = _refused
    if cluster.with_role(tasks.SERVER):
        return
    distribution.join(cluster, start_timeout_seconds, console.Console(cluster.task.name).say)


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: str | int = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool | str = True,
    class_weight: Mapping[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | Sequence[int] = 1,
    *,
    seed: int = 0,
    output_dir: str | pathlib.Path | None = None,
    save_every_steps: int | None = None,
    save_every_minutes: int | None = None,
    keep: int = 3,
    on_non_finite_loss: str = "Stop",
    max_staleness: int | None = None,
    verify: str = "Auto",
    start_timeout_seconds: int = _WAIT_SECONDS,
    step_timeout_seconds: int = _STEP_SECONDS,
    first_step_timeout_seconds: int | None = None,
    evaluation_timeout_seconds: int | None = None,
) -> Any:
    """Train a model on all devices and processes there are; else as `keras.Model.fit`.

    Args:
        model: a compiled model, or a function that returns one.
        x, y and the others up to validation_freq: as in Keras; batch_size is of all replicas.
        seed: of the order of examples, and of the model that a function builds.
        output_dir: a folder for checkpoints and logs, the same for all processes; a run that is
            started again resumes from there. None: nothing is written.
        save_every_steps, save_every_minutes, keep: when to save within epochs; how many stay.
        on_non_finite_loss: "Stop" raises, "Continue" leaves the step's update out.
        max_staleness: with parameter servers, how old a gradient may be.
        verify: which steps are compared with one process: "Auto", "Always" or "Off".
        start_timeout_seconds: how long peers are waited for.
        step_timeout_seconds: how long a step may take, or another part of the run.
        first_step_timeout_seconds: the same for the first step, which also builds its graph.
        evaluation_timeout_seconds: the same for a batch of the evaluation. None, as for the first
            step: step_timeout_seconds.

    Returns:
        The `keras.callbacks.History`, on every process that trains.

    Raises:
        TrainerError: training could not begin or ended early; knows its exit code.
    """
    arguments = fit_inputs.Arguments(**locals())
    try:
        return _Call(arguments).to_end()
    except errors.UserCodeError as error:
        caller = sys._getframe(1)
        error.place = error.place or f"{caller.f_code.co_filename}:{caller.f_lineno}"
        raise


@functools.wraps(keras.Model.fit)
def _refused(model: Any, *_: Any, **__: Any) -> Any:
    """Say what to change: each process would train a model of its own, and all would seem well."""
    caller = sys._getframe(1)
    strategy = explanation.strategy_of(model)
    call = explanation.UnsupportedCall("fit", strategy, caller.f_code.co_filename, caller.f_lineno)
    raise errors.UserCodeError(explanation.explain(call))


class _Call:
    """One call of `fit`, from its arguments to the history."""

    def __init__(self, arguments: fit_inputs.Arguments) -> None:
        self._arguments = arguments
        self._started = time.monotonic()
        self._in_job = distribution.in_job()
        if self._in_job:
            distribution.exit_by_contract()
        self._cluster = distribution.described()
        alone = self._cluster.alone
        self._out = console.Console(
            "" if alone else self._cluster.task.name,
            os.environ.get(environment.FAILURE_FILE, ""),
            quiet=arguments.verbose == 0,
        )
        self._give_up = functools.partial(termination.give_up, self._out)
        has_servers = bool(self._cluster.with_role(tasks.SERVER))
        self._models = models.Models(arguments.model, remote=has_servers)
        self._callbacks = callbacks_of.checked(arguments.callbacks, _strategy(self._cluster))
        self._training_callbacks: callbacks_of.Callbacks | None = None

    def to_end(self) -> Any:
        """Train, and return the history."""
        _check_surroundings()
        first_step.stop()
        data = fit_inputs.build(self._arguments)
        with _folder(self._arguments.output_dir) as folder:
            settings = self._settings(data, folder)
            preflight.check(settings)
            listens = self._in_job or self._arguments.output_dir is not None
            late = functools.partial(self._give_up, errors.PreemptedError(termination.LATE))
            with distribution.listening(listens, late, settings.grace_seconds) as stop:
                self._train(settings, data, stop)
        return None if self._training_callbacks is None else self._training_callbacks.history

    def _settings(self, data: fit_inputs.Inputs, folder: pathlib.Path) -> Settings:
        job = job_file.JobFile(
            name="fit",
            strategy=_strategy(self._cluster),
            trainer=self._arguments.spec(data.batch_size),
        )
        return Settings(
            job=job,
            digest=hashlib.sha256(job.model_dump_json(by_alias=True).encode()).hexdigest(),
            cluster=self._cluster,
            source_dir=_script().parent,
            output_dir=folder,
            job_uid=os.environ.get(environment.JOB_UID, ""),
            attempt=process_settings.positive(os.environ, environment.ATTEMPT),
            cpu_devices=process_settings.cpu_devices(os.environ),
            logs_steps=False,
            progress=process_settings.progress_target(os.environ),
            first_epoch=self._arguments.initial_epoch,
            grace_seconds=process_settings.grace_seconds(os.environ),
        )

    def _train(
        self, settings: Settings, data: fit_inputs.Inputs, stop: termination.Termination
    ) -> None:
        module = None
        try:
            if settings.uses_servers:
                distribution.before_servers()
            if settings.uses_servers and not settings.cluster.is_chief:
                control.serve(settings, self._out, stop)
                termination.end(0)
            with stall.watching(stall.limits(settings.job.trainer), self._give_up) as watch:
                module = self._module(data, watch)
                process = setup.RunContext(
                    settings=settings,
                    module=module,
                    out=self._out,
                    stop=stop,
                    give_up=self._give_up,
                    watch=watch,
                    started=self._started,
                    script=True,
                    logs=self._arguments.output_dir is not None,
                    facts=data.facts,
                    has_callbacks=bool(self._callbacks),
                    has_twins=self._models.has_twins,
                )
                self._train_to_end(process, data)
        except errors.TrainerError:
            raise
        except Exception as error:
            raise exit_report.translate(error, settings.cluster.alone, module) from error

    def _module(self, data: fit_inputs.Inputs, watch: stall.Watch) -> user.Module:
        functions = {"build_model": self._models.build, "training_data": lambda: data.training}
        if data.validation is not None:
            functions["evaluation_data"] = lambda: data.validation
        return user.Module(_script(), functions, self._models.seeded, watch.moved)

    def _train_to_end(self, context: setup.RunContext, data: fit_inputs.Inputs) -> None:
        observe = functools.partial(self._observer, data)
        settings = context.settings
        if settings.uses_servers:
            run.train_to_end(servers.ParameterServerRun(context), observe)
            return
        limit = settings.job.trainer.start_timeout_seconds
        with context.watch.waiting():
            count = distribution.join(settings.cluster, limit, self._out.say)
        run.train_to_end(mesh.MeshRun(dataclasses.replace(context, device_count=count)), observe)

    def _observer(
        self, data: fit_inputs.Inputs, engine_setup: setup.EngineSetup
    ) -> observer.Observer:
        plan = callbacks_of.CallbackSchedule(
            callbacks=self._callbacks,
            epochs=self._arguments.epochs,
            steps=data.steps,
            verbose=_verbosity(self._arguments.verbose),
            validates=data.validation is not None,
            validation_freq=self._arguments.validation_freq,
        )
        self._training_callbacks = callbacks_of.Callbacks(
            plan,
            model_access.ReplicatedModelAccess(engine_setup.replicas),
            self._models.hand_back,
            engine_setup.start.observer,
        )
        return self._training_callbacks


def _check_surroundings() -> None:
    if keras.backend.backend() != "tensorflow":
        raise errors.BadConfigurationError(
            f"Keras runs on {keras.backend.backend()}: set KERAS_BACKEND=tensorflow before it is "
            "imported."
        )
    if tf.distribute.has_strategy():
        raise errors.UserCodeError(
            "fit was called inside strategy.scope(): build the model there, and call fit after it."
        )


def _verbosity(verbose: str | int) -> int:
    """The meaning of `verbose`: "auto" is a bar on a terminal, and a line an epoch elsewhere."""
    if verbose == "auto":
        return callbacks_of.BAR if sys.stdout.isatty() else 2
    return int(verbose)


def _strategy(cluster: tasks.Cluster) -> job_file.Strategy:
    if cluster.with_role(tasks.SERVER):
        return job_file.Strategy.PARAMETER_SERVER
    if cluster.alone:
        return job_file.Strategy.MIRRORED
    return job_file.Strategy.MULTI_WORKER_MIRRORED


def _script() -> pathlib.Path:
    """The running script; without one, a name in the working directory."""
    main = sys.modules.get("__main__")
    return pathlib.Path(getattr(main, "__file__", None) or "script").resolve()


@contextlib.contextmanager
def _folder(output_dir: str | pathlib.Path | None) -> Iterator[pathlib.Path]:
    """The folder for checkpoints and logs; without one, a placeholder that writes nothing."""
    if output_dir is not None:
        yield process_settings.folder(output_dir, "output_dir").resolve()
        return
    with tempfile.TemporaryDirectory(prefix="tfparallel-") as empty:
        yield pathlib.Path(empty)
