"""What a script trains on and validates on, whatever it gives."""

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import batches, batching, nest, order, passes
from tfparallel_trainer.keras_fit import arguments, arrays


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """The data of a run."""

    training: batching.Undivided
    validation: batching.Undivided | None
    batch_size: int
    """Examples in a step over all replicas."""
    steps: int | None
    """Batches in an epoch, where that is known."""
    facts: dict[str, int]
    """What must be the same in all processes."""


def of(arguments: arguments.Arguments) -> Inputs:
    """Make them of the arguments.

    Raises:
        UserCodeError: they are not what Keras' fit takes, or cannot be divided.
    """
    if isinstance(arguments.shuffle, str):
        raise errors.UserCodeError(
            f"shuffle is {arguments.shuffle!r}: give True, which shuffles all examples, or False."
        )
    seed = arguments.seed if arguments.shuffle else None
    x_batches = batches.opened(arguments.x, "x", seed)
    return _of_arrays(arguments, seed) if x_batches is None else _of_batches(arguments, x_batches)


def _of_batches(arguments: arguments.Arguments, x_batches: batches.Batches) -> Inputs:
    for name in ("y", "sample_weight", "batch_size", "validation_split"):
        value = getattr(arguments, name)
        if not _absent(value):
            raise errors.UserCodeError(
                f"{name} is given, and x brings batches itself: leave {name} out; targets and "
                "weights are parts of each batch."
            )
    if arguments.output_dir is not None:
        _check_order(arguments)
    source = batches.Whole(
        x_batches,
        arguments.steps_per_epoch,
        arguments.class_weight,
        first_epoch=arguments.initial_epoch,
    )
    return Inputs(
        training=source,
        validation=_validation(arguments),
        batch_size=source.batch_size,
        steps=source.steps,
        facts={
            "the first batch of x (give shuffle a seed)": source.digest,
            "steps_per_epoch": arguments.steps_per_epoch or 0,
        },
    )


def _check_order(arguments: arguments.Arguments) -> None:
    """See that a run that is started again can go on in the same order.

    Raises:
        UserCodeError: it cannot.
    """
    if not isinstance(arguments.x, tf.data.Dataset):
        return
    if passes.shuffles_without_seed(arguments.x):
        raise errors.UserCodeError(
            "x shuffles without a seed, and output_dir is given: a run that is started again would "
            "use some examples twice and others never. Give shuffle a seed."
        )
    other = arguments.validation_data
    if isinstance(other, tf.data.Dataset) and passes.share_a_shuffle(arguments.x, other):
        raise errors.UserCodeError(
            "x and validation_data share a shuffle, so each evaluation changes the order of x: "
            "give shuffle reshuffle_each_iteration=False."
        )


def _of_arrays(arguments: arguments.Arguments, seed: int | None) -> Inputs:
    examples = arrays.examples(arguments.x, arguments.y, arguments.sample_weight, "x and y")
    validation = _validation(arguments)
    if validation is None and arguments.validation_split:
        examples, rest = arrays.split(examples, arguments.validation_split)
        validation = _held_out(arguments, rest)
    if arguments.class_weight is not None:
        examples = arrays.weighted(examples, arguments.class_weight)
    count = len(nest.leaves(examples)[0])
    batch_size = arguments.batch_size or _even(count, arguments.steps_per_epoch)
    whole = order.steps(count, batch_size)
    return Inputs(
        training=arrays.Training(
            examples, seed, arguments.steps_per_epoch, arguments.initial_epoch
        ),
        validation=validation,
        batch_size=batch_size,
        steps=min(arguments.steps_per_epoch or whole, whole),
        facts={"the number of examples": count, "steps_per_epoch": arguments.steps_per_epoch or 0},
    )


def _validation(arguments: arguments.Arguments) -> batching.Undivided | None:
    data = arguments.validation_data
    if data is None:
        return None
    validation_batches = batches.opened(data, "validation_data", None)
    if validation_batches is not None:
        return batches.Whole(validation_batches, arguments.validation_steps, None, restarts=True)
    is_tuple = isinstance(data, (tuple, list)) and len(data) in (1, 2, 3)
    if not is_tuple and not isinstance(data, np.ndarray | tf.Tensor | dict):
        raise errors.UserCodeError(
            f"validation_data is {type(data).__name__}: give x, (x, y) or (x, y, sample_weight)."
        )
    x, y, weight = nest.triple(data)
    return _held_out(arguments, arrays.examples(x, y, weight, "validation_data"))


def _held_out(arguments: arguments.Arguments, examples: Any) -> batching.Undivided:
    size = arguments.validation_batch_size or arguments.batch_size
    count = len(nest.leaves(examples)[0])
    return arrays.Validation(
        examples, size or _even(count, arguments.validation_steps), arguments.validation_steps
    )


def _even(count: int, steps: int | None) -> int:
    """Keras' batch size where none is given."""
    return math.ceil(count / steps) if steps else arrays.DEFAULT_BATCH


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not value)
