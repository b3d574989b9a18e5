"""Trains Keras 3 models on many devices and processes; knows TensorFlow and no Kubernetes.

`fit` and `start` are for scripts of one's own (docs/how-to/fit.md), `Phase` for training steps.
"""

from typing import Any

__all__ = ["Phase", "fit", "start"]


def __getattr__(name: str) -> Any:
    """Import TensorFlow only for those who train; the operator needs the contract alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Phase":
        from tfparallel_trainer.objective import phases

        return phases.Phase
    from tfparallel_trainer.keras_fit import fit

    return getattr(fit, name)
