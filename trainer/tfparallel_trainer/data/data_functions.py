"""Calls the user's data functions and makes feeds of what they return."""

import dataclasses
from collections.abc import Generator, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, inputs, user
from tfparallel_trainer.data import arrays, batch_division, batches, feed, random_access, stream


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The arguments of data functions except the epoch, and the division of batches."""

    context: user.Context
    division: batch_division.BatchSharding
    endless_allowed: bool
    """Whether the job gives steps, so that an epoch need not end."""


def training(module: user.Module, request: Request) -> feed.Feed:
    """The training examples, prepared ahead.

    Examples with numbers are shuffled again for each epoch. Data sets and generators keep their
    order. A result that the interface does not know is a UserCodeError.
    """
    with module.concerns("training_data"):
        return feed.Feed(_Function(module, "training_data", request, shuffled=True).opened())


def evaluation(module: user.Module, request: Request) -> feed.Feed:
    """The examples to evaluate on, in their own order, prepared ahead; raises as `training`."""
    with module.concerns("evaluation_data"):
        return feed.Feed(_Function(module, "evaluation_data", request, shuffled=False).opened())


@dataclasses.dataclass(frozen=True, slots=True)
class _Function:
    """A data function of the user's."""

    module: user.Module
    name: str
    request: Request
    shuffled: bool

    def opened(self) -> batch_division.BatchSource:
        """Create a feed from the function's result for epoch 0."""
        data = self._call(0)
        division = self.request.division
        if isinstance(data, keras.utils.PyDataset):
            py_batches = batches.of_py_dataset(data, self.name, self._order_seed)
            data = batches.BatchedDataset(py_batches, None, None, restarts=not self.shuffled)
        if isinstance(data, batch_division.Shardable):
            return data.divided(division)
        if isinstance(data, tf.data.Dataset):
            return self._stream(data)
        if isinstance(data, Iterator):
            return stream.GeneratedSource(self._generator, division, self.name)
        if isinstance(data, inputs.Records):
            return self._rows(random_access.of_records(data.paths, self.name), data.functions)
        functions: tuple[inputs.Function, ...] = ()
        if isinstance(data, inputs.Arrays):
            functions, data = data.functions, data.arrays
        examples = arrays.checked(data, self.name)
        if functions:
            return self._rows(random_access.of_arrays(examples), functions)
        return arrays.ArraySource(examples, division, self._order_seed)

    @property
    def _order_seed(self) -> int | None:
        """Shuffles the examples; None keeps their order."""
        return self.request.context.seed if self.shuffled else None

    def _rows(
        self, examples: random_access.Examples, functions: tuple[inputs.Function, ...]
    ) -> batch_division.BatchSource:
        prepared = random_access.Rows(
            examples=examples,
            functions=functions,
            seed=self.request.context.seed,
            shuffled=self.shuffled,
            function=self.name,
        )
        with user.guard(self.module.path, f"what examples of {self.name} go through raised"):
            return random_access.RowsSource(prepared, self.request.division)

    def _stream(self, data_set: tf.data.Dataset) -> batch_division.BatchSource:
        stream_feed = stream.StreamSource(data_set, self._call, self.request.division, self.name)
        if stream_feed.endless and not (self.request.endless_allowed and self.shuffled):
            raise errors.UserCodeError(
                f"{self.name} returns a data set that never ends: remove .repeat()"
                + (", or give trainer.steps instead of trainer.epochs." if self.shuffled else ".")
            )
        return stream_feed

    def _generator(self, epoch: int) -> Generator[Any, None, None]:
        return self._guarded(self._call(epoch))

    def _guarded(self, examples: Iterator[Any]) -> Generator[Any, None, None]:
        with user.guard(self.module.path, f"{self.name} raised"):
            yield from examples

    def _call(self, epoch: int) -> Any:
        """Call the function with all seeds set, the same on every process.

        Again for each epoch: a data set that shuffles gives another order the second time.
        """
        context = dataclasses.replace(self.request.context, epoch=epoch)
        with self.module.seeded((context.seed + epoch) % 2**31):
            return self.module.call_with(self.name, context)
