"""Parameters of which the ordinary tiers take some, and the long tier all."""

from collections.abc import Collection, Iterable
from typing import TypeVar

import pytest

T = TypeVar("T")


def some(values: Iterable[T], ordinary: Collection[T]) -> list[T]:
    """Return the values; those that are not among the ordinary ones are of the long tier.

    Raises:
        ValueError: an ordinary value is none of the values.
    """
    values = list(values)
    if unknown := [value for value in ordinary if value not in values]:
        raise ValueError(f"{unknown} are none of {values}.")
    return [
        value if value in ordinary else pytest.param(value, marks=pytest.mark.long)  # type: ignore[misc]
        for value in values
    ]
