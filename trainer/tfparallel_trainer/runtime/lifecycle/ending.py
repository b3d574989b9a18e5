"""How a process of the trainer ends."""

import os
import sys
import traceback

from tfparallel_trainer import errors
from tfparallel_trainer.contract import exits
from tfparallel_trainer.runtime.reporting import console


def tell(out: console.Console, error: errors.TrainerError) -> None:
    """Write an error for people."""
    out.fail(str(error), error.trace if isinstance(error, errors.UserCodeError) else "")


def exit_of(out: console.Console, error: Exception, program: str) -> exits.Exit:
    """Write the error that a program ends with, and give its exit code."""
    if isinstance(error, errors.TrainerError):
        tell(out, error)
        return error.exit
    trace = "".join(traceback.format_exception(error))
    out.fail(f"the {program} failed, please report this", trace)
    return exits.Exit.INTERNAL_ERROR


def end(code: int) -> None:
    """End the process at once: TensorFlow's threads may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
