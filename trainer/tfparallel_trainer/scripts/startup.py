"""Loaded when Python starts with TF_CONFIG, by a `.pth` file next to this package.

It takes note of uncaught errors (`sys.excepthook`) and, where the job asks for it, of the first
step. Whatever is needed to explain them is imported then, so that a program that ends well pays
next to nothing.
"""

import os
import sys
from types import TracebackType


def listen() -> None:
    """Explain errors that nobody catches, after they were shown as before."""
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
if os.environ.get("TFPARALLEL_ON_SEPARATE_TRAINING"):
    from tfparallel_trainer.scripts import first_step

    first_step.watch()
