"""Keras' own fit in a script of several processes. Each would train a model of its own, and all
would seem well. Under a strategy of the script's it fails.
"""

import functools
import sys
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.scripts import explanation


def refuse() -> None:
    """Let Keras' fit raise from now on, and say what to change."""
    keras.Model.fit = _refused


@functools.wraps(keras.Model.fit)
def _refused(model: Any, *_: Any, **__: Any) -> Any:
    caller = sys._getframe(1)
    strategy = explanation.strategy_of(model)
    call = explanation.Call("fit", strategy, caller.f_code.co_filename, caller.f_lineno)
    raise errors.UserCodeError(explanation.explain(call))
