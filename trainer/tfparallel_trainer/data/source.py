"""Calls the user's data functions and makes feeds of what they return."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.data import ahead, arrays, feed, stream


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the data functions are told, besides the epoch, and how batches are cut."""

    seed: int
    source_dir: pathlib.Path
    output_dir: pathlib.Path
    division: feed.Division
    endless_allowed: bool
    """Whether the job gives steps, so that an epoch need not end."""

    def context(self, epoch: int) -> user.Context:
        """The context of an epoch."""
        return user.Context(
            seed=self.seed,
            epoch=epoch,
            global_batch_size=self.division.batch_size,
            source_dir=self.source_dir,
            output_dir=self.output_dir,
        )


def training(module: user.Module, request: Request) -> feed.Feed:
    """The training examples; arrays are shuffled anew for each epoch, data sets are as they are.

    Raises:
        UserCodeError: the function raises, or returns what the interface does not know.
    """
    return ahead.AheadFeed(_feed(module.training_data, "training_data", request, request.seed))


def evaluation(module: user.Module, request: Request) -> feed.Feed:
    """The examples to evaluate on, in their own order.

    Raises:
        UserCodeError: as `training`.
    """
    return ahead.AheadFeed(_feed(module.evaluation_data, "evaluation_data", request, None))


def _feed(
    call: Callable[[user.Context], Any],
    name: str,
    request: Request,
    seed: int | None,
) -> feed.Feed:
    given = _seeded(call, request, 0)
    if not isinstance(given, tf.data.Dataset):
        return arrays.ArrayFeed(arrays.checked(given, name), request.division, seed)

    def make(number: int) -> tf.data.Dataset:
        # Anew each time: a data set that shuffles gives another order when it is iterated again.
        return _seeded(call, request, number)

    found = stream.StreamFeed(given, make, request.division, name)
    if found.endless and not (request.endless_allowed and seed is not None):
        raise errors.UserCodeError(
            f"{name} returns a data set that never ends: remove .repeat()"
            + (", or give trainer.steps instead of trainer.epochs." if seed is not None else ".")
        )
    return found


def _seeded(call: Callable[[user.Context], Any], request: Request, epoch: int) -> Any:
    """Call a data function with TensorFlow's and NumPy's seeds set, the same on every process."""
    keras.utils.set_random_seed((request.seed + epoch) % 2**31)
    return call(request.context(epoch))
