"""Which replicas of a strategy belong to this process, and how values reach them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def of_process(strategy: Any) -> tuple[int, ...]:
    """The numbers of this process's replicas among all of the strategy."""
    numbers: list[int] = []

    def note(context: Any) -> tf.Tensor:
        numbers.append(int(context.replica_id_in_sync_group))
        return tf.zeros(())

    strategy.experimental_distribute_values_from_function(note)
    return tuple(numbers)


def spread(strategy: Any, local_ranks: tuple[int, ...], give: Callable[[int], list[Any]]) -> Any:
    """Give each replica of this process its own values.

    Args:
        strategy: the strategy.
        local_ranks: what `of_process` gave.
        give: from a replica's position within `local_ranks` to its tensors.
    """
    return strategy.experimental_distribute_values_from_function(
        lambda context: give(local_ranks.index(int(context.replica_id_in_sync_group)))
    )


def first(strategy: Any, value: Any) -> Any:
    """What the first replica of this process has of a value."""
    return strategy.experimental_local_results(value)[0]
