"""Entry of the trainer: `python -m tfparallel_trainer`, with the environment of the contract."""

import os
import time
from collections.abc import Mapping, Sequence

from tfparallel_trainer import process_settings
from tfparallel_trainer.agent import supervision
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.loop import preflight, quick_start
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console, results


def main() -> None:
    """Run and end the process with an exit code of `contract.exits`."""
    start = supervision.AttemptStart(time.monotonic())
    # Before TensorFlow is imported: it reads this only then. Warnings are shown.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    if environment.AGENT_URL in os.environ:
        start = supervision.supervise(os.environ, _import_program, start.start_time)
    termination.end(attempt(os.environ, start.start_time, start.memory_files))


def attempt(env: Mapping[str, str], started: float, memory_files: Sequence[int] = ()) -> exits.Exit:
    """Make one attempt at the job that the environment describes, and say how it ended.

    `memory_files` are open files of the agent, for copies of the state that outlive the attempt.
    """
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
            _import_program(job_settings)
            from tfparallel_trainer import program

            program.run(job_settings, out, started, memory_files)
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


def _import_program(settings: Settings) -> None:
    """Import what a run uses. What is wrong with the settings shows before that."""
    with quick_start.importing():
        from tfparallel_trainer import program

        program.import_engine(settings.job.strategy)


if __name__ == "__main__":
    main()
