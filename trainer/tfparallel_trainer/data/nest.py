"""Structures of arrays or tensors, in which None stands for an absent part."""

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
    remaining = iter(leaves)
    return convert(lambda _: next(remaining), structure)


def triple(data: Any) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) from a structure with at least x; a missing part is None."""
    parts = list(data) if isinstance(data, (tuple, list)) else [data]
    x, y, weight = (parts + [None] * 3)[:3]
    return x, y, weight


def example(data: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    """The parts of (x, y, sample_weight) that exist, as functions take them."""
    if data[2] is not None:
        return data
    return data[:1] if data[1] is None else data[:2]
