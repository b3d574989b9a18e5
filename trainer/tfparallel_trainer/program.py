"""One run of the trainer with TensorFlow, whose import takes seconds."""

import functools
from collections.abc import Sequence

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import devices
from tfparallel_trainer.contract.job_file import Strategy
from tfparallel_trainer.engines import engine, setup
from tfparallel_trainer.engines.servers import control
from tfparallel_trainer.evaluator import checkpoint_evaluator as evaluator
from tfparallel_trainer.keras_fit import callbacks
from tfparallel_trainer.lifecycle import stall, termination
from tfparallel_trainer.loop import exit_report
from tfparallel_trainer.loop import run as course
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console


def run(
    settings: Settings, out: console.Console, started: float, memory_files: Sequence[int] = ()
) -> None:
    """Train, serve or evaluate to the end.

    Args:
        started: when the attempt began, by time.monotonic().
        memory_files: open files of the agent, for copies of the state that outlive this process.

    Raises:
        errors.TrainerError: it cannot go on.
    """
    give_up = functools.partial(termination.give_up, out)
    late = errors.PreemptedError(termination.LATE)
    stop = termination.Termination(lambda: give_up(late), settings.grace_seconds)
    stop.install()
    devices.limit_threads()
    module = None
    try:
        if settings.uses_servers and not settings.cluster.is_chief and not settings.evaluates:
            control.serve(settings, out, stop)
            return
        template = import_engine(settings.job.strategy)
        with stall.watching(stall.limits(settings.job.trainer), give_up) as watch:
            module = user.load(settings.source_dir, settings.job.trainer.module, watch.moved)
            process = setup.RunContext(
                settings=settings,
                module=module,
                out=out,
                stop=stop,
                give_up=give_up,
                watch=watch,
                started=started,
                memory_files=memory_files,
            )
            evaluator.check(settings, module)
            if settings.evaluates:
                evaluator.until_done(process)
            else:
                observe = functools.partial(callbacks.of_module, settings, module)
                course.train_to_end(template(process), observe)
    except Exception as error:
        raise exit_report.translate(error, settings.cluster.alone, module) from error
    finally:
        stop.end()


def import_engine(strategy: Strategy) -> type[engine.RunTemplate]:
    """Import the engine of a strategy; the others are not needed."""
    match strategy:
        case Strategy.MIRRORED | Strategy.MULTI_WORKER_MIRRORED:
            from tfparallel_trainer.engines.mesh import mesh_run

            return mesh_run.MeshRun
        case Strategy.PARAMETER_SERVER:
            from tfparallel_trainer.engines.servers import parameter_server_run

            return parameter_server_run.ParameterServerRun
        case Strategy.MODEL_SPLIT:
            from tfparallel_trainer.engines.split import split_run

            return split_run.SplitRun
        case Strategy.CUSTOM | Strategy.TPU:
            from tfparallel_trainer.engines.strategy import strategy_run

            return strategy_run.StrategyRun
