"""One run from start to end: find the peers, prepare, train, leave the results."""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import export, files, schedule
from tfparallel_trainer.comms import agreement, devices, rendezvous, shape, watch
from tfparallel_trainer.contract import job_file, outputs
from tfparallel_trainer.contract import progress as protocol
from tfparallel_trainer.data import order
from tfparallel_trainer.engines import engine
from tfparallel_trainer.evaluator import results
from tfparallel_trainer.keras_fit import callbacks
from tfparallel_trainer.loop import observer, step_log, training
from tfparallel_trainer.objective import evaluate, train
from tfparallel_trainer.runtime import settings, setup
from tfparallel_trainer.runtime.lifecycle import stall, termination
from tfparallel_trainer.runtime.reporting import console, progress, records, reports
from tfparallel_trainer.storage import folder, mirror

generations = itertools.count()
"""Of the meshes of this process; a script may train several times."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a run has besides its settings: the user's module and this process's surroundings."""

    module: user.Module
    out: console.Console
    stop: termination.Termination
    give_up: Callable[[errors.TrainerError], None]
    """Ends the process from any thread."""
    watch: stall.Watch
    """Takes this process's signs of life."""
    started: float
    """time.monotonic() at the start of the process."""
    devices: int | None = None
    """How many devices this process has, where it has joined its peers before."""
    script: bool = False
    """Whether the user's script calls, which keeps the trained model itself."""
    logs: bool = True
    """Whether the chief writes records into the output directory."""
    facts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """What else must be the same in all processes."""
    observe: Callable[[setup.Ready], observer.Observer] | None = None
    """Gives who looks on; absent: the callbacks of the module."""


def train_to_end(settings: settings.Settings, process: Process) -> None:
    """Train the user's model and leave the results in the output directory.

    Raises:
        TrainerError: the run ends early; TensorFlow's own errors are not translated here.
    """
    count = process.devices or devices.prepare(settings.cpu_devices, settings.cluster.alone)
    ranks = count * len(settings.cluster.tasks)
    mesh = shape.Mesh(data=ranks, generation=next(generations))
    _check_batch(settings, mesh, count)
    cluster_handle = None if process.devices else join(settings, process)
    process.stop.install()  # TensorFlow takes SIGTERM when it starts a cluster
    names = devices.names(settings.cluster, count)
    compare(settings, process, names[0], count)
    with (
        contextlib.ExitStack() as ending,
        reporter_of(settings, process) as reporter,
        watch.peers(settings.cluster, process.give_up),
    ):
        ready = setup.prepare(settings, process.module, mesh, names, process.out.say, process.watch)
        if not process.script:
            export.check(ready.replicas[0].model, process.module.path)
        engine = _engine(settings, process, ready)
        ending.push(leaving(settings, process, engine.barrier))
        outer = loop(settings, process, ready, reporter, engine)
        if settings.cluster.is_chief:
            if ready.mesh.data > 1 or not process.script:
                _announce(settings, process, ready, outer)
            warn(settings, process, ready)
        process.stop.allow(termination.STEP_SECONDS)
        outer.run()
        if settings.cluster.is_chief and not process.script:
            write_results(settings, process, ready, reporter, outer.position)
        with process.watch.waiting():
            engine.barrier()  # nobody leaves before the chief has written everything
    del cluster_handle  # the processes are one cluster as long as it lives


def join(settings: settings.Settings, process: Process) -> object | None:
    """Find the peers and start TensorFlow's cluster with them.

    Returns:
        What holds the cluster; None without peers.
    """
    if settings.cluster.alone:
        return None
    limit = settings.job.trainer.start_timeout_seconds
    with process.watch.waiting():
        connections = rendezvous.meet(settings.cluster, limit, process.out.say)
        return rendezvous.join(settings.cluster, connections)


def _check_batch(settings: settings.Settings, mesh: shape.Mesh, count: int) -> None:
    size = settings.job.trainer.global_batch_size
    if size < mesh.data:
        raise errors.BadConfigurationError(
            f"trainer.globalBatchSize is {size}, less than the {mesh.data} ranks "
            f"({len(settings.cluster.tasks)} processes with {count} devices each) that share it: "
            f"give at least {mesh.data}, or use fewer replicas."
        )


def compare(settings: settings.Settings, process: Process, device: str, count: int) -> None:
    """See that all processes are started alike.

    Raises:
        BadConfigurationError: one differs from the first.
    """
    path = process.module.path
    source = hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest()
    facts = {
        "the number of devices": count,
        "the arguments of fit" if process.script else "the job file": number(settings.digest),
        f"the content of {path.name}": number(source),
        **process.facts,
    }
    with process.watch.waiting():  # a script may do what it likes before it comes here
        agreement.check(settings.cluster, device, facts)


def number(digest: str) -> int:
    """Of the hexadecimal digits of a digest, as many as processes compare."""
    return int(digest[:15], 16)


@contextlib.contextmanager
def reporter_of(settings: settings.Settings, process: Process) -> Iterator[reports.Reporter]:
    """Open the outlets of this process while the body runs."""
    chief = settings.cluster.is_chief
    written = None
    if chief and process.logs:
        copies = mirror.of(settings.output_dir, settings.results)
        written = records.Records(settings.output_dir, copies)
    target = settings.progress if chief else None
    interval = protocol.MIN_INTERVAL_SECONDS if target is None else target.interval_seconds
    pusher = progress.Pusher(target, interval, process.out.say)
    seconds = progress.END_SECONDS
    try:
        yield reports.Reporter(
            process.out,
            written,
            pusher,
            lambda: results.metrics(settings),
            chief=chief,
            lines=not process.script,  # its callbacks write for people
        )
        seconds = progress.PATIENT_SECONDS
    finally:
        with process.watch.waiting("the last report of progress"):
            pusher.close(seconds)
        if written is not None:
            written.close()


def loop(
    settings: settings.Settings,
    process: Process,
    ready: setup.Ready,
    reporter: reports.Reporter,
    engine: engine.Engine,
) -> training.Training:
    """Put together the outer loop around an engine."""

    def save(at: files.Position) -> None:
        began = time.monotonic()
        if ready.save(at):
            reporter.event("checkpoint", at.step, seconds=round(time.monotonic() - began, 3))
            reporter.flush()

    if settings.logs_steps and settings.cluster.is_chief:
        engine = step_log.Recorded(engine, ready.replicas[0], settings.output_dir)
    observe = process.observe or functools.partial(callbacks.of_module, settings, process.module)
    parts = training.Parts(
        spec=settings.job.trainer,
        training=ready.training,
        engine=engine,
        reporter=reporter,
        termination=process.stop,
        watch=process.watch,
        schedule=schedule.Schedule(settings.job.trainer.checkpoint, settings.cluster.is_chief),
        save=save,
        observer=observe(ready),
    )
    return training.Training(parts, ready.start)


def _engine(settings: settings.Settings, process: Process, ready: setup.Ready) -> engine.Engine:
    evaluator = None
    if ready.evaluation is not None:
        spec = ready.evaluation.spec
        # A script's callbacks (SwapEMAWeights) say whether it is, as in Keras.
        averaged = not process.script
        evaluator = evaluate.Evaluation(process.module, ready.replicas, spec, averaged=averaged)
    step = train.TrainStep(
        process.module,
        ready.replicas,
        ready.training.spec,
        leaves_out=settings.job.trainer.on_non_finite_loss is job_file.OnNonFiniteLoss.CONTINUE,
    )
    return engine.Synchronous(ready.replicas, step, evaluator, ready.evaluation)


def _announce(
    settings: settings.Settings, process: Process, ready: setup.Ready, outer: training.Training
) -> None:
    size, ranks = settings.job.trainer.global_batch_size, ready.mesh.data
    parts = [len(part) for part in order.split(size, ranks)]
    shares = " + ".join(map(str, parts[:8])) + (" + …" if ranks > 8 else "")
    tasks = settings.cluster.tasks
    places = ", ".join(f"{task.name} {task.address}" for task in tasks[:8])
    more = f" and {len(tasks) - 8} more" if len(tasks) > 8 else ""
    process.out.say(
        f"{settings.job.strategy}: {counted(ranks, 'rank')} = {counted(len(tasks), 'process')} "
        f"with {counted(ranks // len(tasks), 'device')} each ({ready.replicas[0].device}, …) "
        f"at {places}{more}; global batch {size} = {shares}; {outer.total_steps or 'unknown'} steps"
    )


def warn(settings: settings.Settings, process: Process, ready: setup.Ready) -> None:
    """Say what may surprise people about this run."""
    for sentence in ready.replicas[0].advice:
        process.out.say(f"warning: {sentence}")
    if settings.job.trainer.checkpoint is None and not process.script:
        process.out.say("warning: without trainer.checkpoint a restart begins at step 0")


def counted(number: int, thing: str) -> str:
    """Write a number of things, such as 2 processes."""
    ending = "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{'' if number == 1 else ending}"


def write_results(
    settings: settings.Settings,
    process: Process,
    ready: setup.Ready,
    reporter: reports.Reporter,
    position: files.Position,
    steps_by_worker: dict[str, int] | None = None,
) -> None:
    """Leave the trained model and the summary in the output directory."""
    model = ready.replicas[0].model
    process.watch.moved(f"the export of {outputs.MODEL} began")
    export.save(model, settings.output_dir / outputs.MODEL, process.module.path)
    if settings.job.trainer.saved_model:
        serving = settings.output_dir / outputs.SAVED_MODEL
        process.watch.moved(f"the export of {outputs.SAVED_MODEL} began")
        export.save_for_serving(model, serving, process.module.path)
    write_summary(settings, process, ready, reporter, position, steps_by_worker)


def write_summary(
    settings: settings.Settings,
    process: Process,
    ready: setup.Ready,
    reporter: reports.Reporter,
    position: files.Position,
    steps_by_worker: dict[str, int] | None = None,
) -> None:
    """Leave the summary in the output directory, which says that all is done."""
    process.watch.moved("the export ended")
    if settings.job.evaluator:
        results.wait_for(position.step, settings, process.out.say, process.watch.moved)
        reporter.evaluated(position.step, position.epoch)
    duration = time.monotonic() - process.started
    summary = outputs.Summary(
        done=True,
        job_digest=settings.digest,
        job_uid=settings.job_uid,
        module_digest=None if process.script else settings.module_digest,
        steps=position.step,
        epochs=position.epoch,
        attempt=ready.attempt,
        duration_seconds=round(duration, 3),
        metrics={name: outputs.number(value) for name, value in reporter.metrics.items()},
        steps_by_worker=steps_by_worker,
    )
    reporter.event("done", position.step)
    reporter.flush()
    content = summary.model_dump_json(by_alias=True, exclude_none=True)
    folder.Folder(settings.output_dir).write(outputs.SUMMARY, content.encode())
    reporter.flush()  # the last file: it says that the others are in place
    process.out.say(
        f"done after {position.step} steps in {duration:.1f} s: {console.metrics(reporter.metrics)}"
    )


def leaving(
    settings: settings.Settings, process: Process, barrier: Callable[[], None]
) -> Callable[[object, BaseException | None, object], None]:
    """What a process does last where all end alike, with the work done or with one error.

    It waits until no peer needs it. A process that ends while another one still receives
    what both agreed on makes that one report a lost peer.
    """

    def leave(_: object, error: BaseException | None, __: object) -> None:
        alike = error is None or (isinstance(error, errors.TrainerError) and error.everywhere)
        if settings.cluster.alone or not alike:
            return
        # A peer that leaves first breaks this wait, and has seen the end of all work before.
        with process.watch.waiting(), contextlib.suppress(tf.errors.OpError):
            barrier()

    return leave
