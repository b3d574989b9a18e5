"""Initial values of variables that exist only as a skeleton: equal to those of the whole model."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Part = tuple[slice, ...]
"""Which rows of each axis of a variable; empty for all of it."""


def values(variables: Mapping[str, Any], parts: Mapping[str, Part]) -> Iterator[tuple[str, Any]]:
    """Give the parts of the initial values of some variables, one variable after the other.

    Only one whole variable is in memory at a time, as long as the caller keeps but the parts. A
    layer must not be made anew with the shape of its part: its initialiser would draw other
    numbers, and some scale them by the shape.

    Args:
        variables: those of a skeleton, by key.
        parts: what this device keeps, by key.

    Yields:
        Key and part.
    """
    for key, part in parts.items():
        whole = np.asarray(variables[key].value)
        # Copied, because a slice (and TensorFlow's, too) would keep the whole in memory.
        yield key, np.array(whole[part])
        del whole
