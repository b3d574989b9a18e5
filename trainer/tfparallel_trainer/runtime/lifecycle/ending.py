"""How a process of the trainer ends."""

import os
import sys

from tfparallel_trainer import errors
from tfparallel_trainer.runtime.reporting import console


def tell(out: console.Console, error: errors.TrainerError) -> None:
    """Write an error for people."""
    out.fail(str(error), error.trace if isinstance(error, errors.UserCodeError) else "")


def end(code: int) -> None:
    """End the process at once: TensorFlow's threads may wait for peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
