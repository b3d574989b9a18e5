"""Structures of arrays or tensors in which None stands for a part that is not given."""

from collections.abc import Callable, Sequence
from typing import Any

import keras


def convert(function: Callable[[Any], Any], structure: Any) -> Any:
    """Apply a function to every leaf but None; the structure stays."""
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else function(leaf), structure
    )


def leaves(structure: Any) -> list[Any]:
    """Every leaf but None."""
    return [leaf for leaf in keras.tree.flatten(structure) if leaf is not None]


def packed(structure: Any, leaves: Sequence[Any]) -> Any:
    """The structure with other leaves, in the order of `leaves`."""
    waiting = iter(leaves)
    return convert(lambda _: next(waiting), structure)


def triple(example: Any) -> Any:
    """(x, y, sample_weight) of what may have no weights."""
    return example if len(example) == 3 else (*example, None)
