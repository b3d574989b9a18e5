"""Which replicas of a strategy belong to this process, and how values reach them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def of_process(strategy: Any) -> tuple[int, ...]:
    """The numbers of this process's replicas among all of the strategy."""
    found: list[int] = []

    def note(context: Any) -> tf.Tensor:
        found.append(int(context.replica_id_in_sync_group))
        return tf.zeros(())

    strategy.experimental_distribute_values_from_function(note)
    return tuple(found)


def spread(strategy: Any, own: tuple[int, ...], give: Callable[[int], list[Any]]) -> Any:
    """Give each replica of this process its own values.

    Args:
        strategy: the strategy.
        own: what `of_process` gave.
        give: from a replica's position within `own` to its tensors.
    """
    return strategy.experimental_distribute_values_from_function(
        lambda context: give(own.index(int(context.replica_id_in_sync_group)))
    )


def first(strategy: Any, value: Any) -> Any:
    """What the first replica of this process has of a value."""
    return strategy.experimental_local_results(value)[0]
