"""For rules of people's own that split layers: `rule`, `Rule` and what a rule deals with."""

from typing import Any

__all__ = ["Call", "CannotSplitError", "Local", "Rule", "Shard", "Split", "rule"]


def __getattr__(name: str) -> Any:
    """Import TensorFlow only for those who write rules; much of this package does without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tfparallel_trainer.engines.split.layers.rules import registry

    return getattr(registry, name)
