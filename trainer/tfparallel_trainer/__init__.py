"""Trains Keras 3 models on many devices and processes; knows TensorFlow and no Kubernetes.

`fit` and `start` are for people's own scripts (docs/fit.md).
"""

from typing import Any

__all__ = ["fit", "start"]


def __getattr__(name: str) -> Any:
    """Import TensorFlow only for those who train; the operator needs the contract alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfparallel_trainer.keras_fit import call

    return getattr(call, name)
