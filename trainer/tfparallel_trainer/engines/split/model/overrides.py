"""A user's model as a graph, with the ways in which the user's module wants its layers split."""

import dataclasses
from typing import Any

from tfparallel_trainer import errors, user
from tfparallel_trainer.engines.split.model import graph, recording


def recorded(module: user.Module, skeleton: Any) -> graph.Graph:
    """Give the graph of a model that is to be divided.

    Args:
        module: the user's functions.
        skeleton: what `build_model` gave, built without its weights and not compiled yet.

    Raises:
        UserCodeError: it cannot be divided, or `layer_ways` raises or gives something else.
    """
    overrides = module.layer_ways(skeleton)
    is_named = isinstance(overrides, dict) and all(
        isinstance(one, str) for pair in overrides.items() for one in pair
    )
    if not is_named:
        raise errors.UserCodeError(
            f"{module.path}: layer_ways returned {overrides!r}: return a dictionary of ways by the "
            "names of layers, such as {'dense': 'column'}."
        )
    return dataclasses.replace(recording.record(skeleton), sharding_overrides=overrides)
