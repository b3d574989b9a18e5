"""Loaded by a `.pth` file when Python starts in a replica that runs a script, and nowhere else.

It observes uncaught errors (`sys.excepthook`) and the first step. What explains them is imported
then, so that a program that ends well pays next to nothing.
"""

import os
import sys
from types import TracebackType

from tfparallel_trainer.scripts import first_step


def listen() -> None:
    """Explain uncaught errors, after Python has shown them."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if "keras" in sys.modules or isinstance(error, OSError):
            from tfparallel_trainer.contract import exits
            from tfparallel_trainer.scripts import explanation

            if explanation.report(error, os.environ):
                raise SystemExit(int(exits.Exit.USER_ERROR))

    sys.excepthook = hook


listen()
first_step.watch()
