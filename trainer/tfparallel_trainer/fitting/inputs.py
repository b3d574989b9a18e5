"""What a script trains on and validates on, whatever it gives."""

import dataclasses
import math

from tfparallel_trainer import errors
from tfparallel_trainer.data import feed, nest, order
from tfparallel_trainer.fitting import arguments, arrays


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """The data of a run."""

    training: feed.Source
    validation: feed.Source | None
    batch_size: int
    """Examples in a step over all replicas."""
    steps: int | None
    """Batches in an epoch, where that is known."""
    facts: dict[str, int]
    """What must be the same in all processes."""


def of(asked: arguments.Arguments) -> Inputs:
    """Make them of the arguments.

    Raises:
        UserCodeError: they are not what Keras' fit takes, or cannot be divided.
    """
    given = arrays.examples(asked.x, asked.y, asked.sample_weight, "x and y")
    validation = None
    if asked.validation_data is not None:
        validation = _validation(asked)
    elif asked.validation_split:
        given, validation = arrays.split(given, asked.validation_split)
    if asked.class_weight is not None:
        given = arrays.weighted(given, asked.class_weight)
    count = len(nest.leaves(given)[0])
    batch_size = asked.batch_size or _even(count, asked.steps_per_epoch)
    whole = order.steps(count, batch_size)
    steps = min(asked.steps_per_epoch or whole, whole)
    seed = asked.seed if asked.shuffle else None
    return Inputs(
        training=arrays.Training(given, seed, asked.steps_per_epoch, asked.initial_epoch),
        validation=_source(asked, validation),
        batch_size=batch_size,
        steps=steps,
        facts={"the number of examples": count, "steps_per_epoch": asked.steps_per_epoch or 0},
    )


def _validation(asked: arguments.Arguments) -> object:
    data = asked.validation_data
    if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
        raise errors.UserCodeError(
            f"validation_data is {type(data).__name__}: give (x, y) or (x, y, sample_weight)."
        )
    x, y, weight = data if len(data) == 3 else (*data, None)
    return arrays.examples(x, y, weight, "validation_data")


def _source(asked: arguments.Arguments, given: object) -> feed.Source | None:
    if given is None:
        return None
    size = asked.validation_batch_size or asked.batch_size
    count = len(nest.leaves(given)[0])
    return arrays.Validation(
        given, size or _even(count, asked.validation_steps), asked.validation_steps
    )


def _even(count: int, steps: int | None) -> int:
    """Keras' batch size where none is given."""
    return math.ceil(count / steps) if steps else arrays.DEFAULT_BATCH
