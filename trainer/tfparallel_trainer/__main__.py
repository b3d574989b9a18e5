"""Entry of the trainer: `python -m tfparallel_trainer`, with the environment of the contract."""

import functools
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfparallel_trainer import errors, process_settings
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.contract.job_file import Strategy
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.loop import preflight, quick_start
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console, results

if TYPE_CHECKING:
    from tfparallel_trainer.engines import engine


def main() -> None:
    """Run and end the process with an exit code of `contract.exits`."""
    started = time.monotonic()
    # Before TensorFlow is imported: it reads this only then. Warnings are shown.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    termination.end(attempt(os.environ, started))


def attempt(env: Mapping[str, str], started: float) -> exits.Exit:
    """Make one attempt at the job that the environment describes, and say how it ended."""
    failure_file = env.get(environment.FAILURE_FILE, "")
    out = console.Console("trainer", failure_file)
    try:
        job_settings = process_settings.read(env)
        out = console.Console(job_settings.cluster.task.name, failure_file)
        preflight.check(job_settings)
        if _has_finished(job_settings, out):
            out.say(f"this job has already finished; its results are in {job_settings.results}")
        else:
            config = process_settings.tf_config(env)
            if config != env.get(environment.TF_CONFIG):
                # A strategy of the user's finds the cluster where TensorFlow looks for it.
                os.environ[environment.TF_CONFIG] = str(config)
            _attempt(job_settings, out, started)
    except Exception as error:
        return termination.exit_of(out, error, "trainer")
    return exits.Exit.DONE


def _has_finished(settings: Settings, out: console.Console) -> bool:
    if results.end_of(settings) is None or results.owed(settings):
        return False
    if settings.evaluates or results.has_model(settings):
        return True
    out.say(
        f"warning: this job has finished, and {outputs.MODEL} in {settings.results} cannot be "
        "read: it is exported again from the newest checkpoint"
    )
    return False


def _attempt(settings: Settings, out: console.Console, started: float) -> None:
    # TensorFlow takes seconds to import; what is wrong with the settings shows before.
    with quick_start.importing():
        from tfparallel_trainer import user
        from tfparallel_trainer.comms import devices
        from tfparallel_trainer.engines import setup
        from tfparallel_trainer.engines.servers import control
        from tfparallel_trainer.evaluator import checkpoint_evaluator as evaluator
        from tfparallel_trainer.keras_fit import callbacks
        from tfparallel_trainer.lifecycle import stall
        from tfparallel_trainer.loop import exit_report, run

        template = _template(settings.job.strategy)

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
            )
            evaluator.check(settings, module)
            if settings.evaluates:
                evaluator.until_done(process)
            else:
                observe = functools.partial(callbacks.of_module, settings, module)
                run.train_to_end(template(process), observe)
    except Exception as error:
        raise exit_report.translate(error, settings.cluster.alone, module) from error
    finally:
        stop.end()


def _template(strategy: Strategy) -> "type[engine.RunTemplate]":
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


if __name__ == "__main__":
    main()
