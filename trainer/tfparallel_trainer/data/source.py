"""Calls the user's data functions and makes feeds of what they return."""

import dataclasses
from collections.abc import Callable, Generator, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, inputs, user
from tfparallel_trainer.data import arrays, batches, batching, feed, fingerprints, rows, stream


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """What the data functions are told, but for the epoch, and how batches are cut."""

    context: user.Context
    division: batching.Division
    endless_allowed: bool
    """Whether the job gives steps, so that an epoch need not end."""


def training(module: user.Module, request: Request) -> feed.Feed:
    """The training examples, prepared ahead.

    Examples that have numbers are shuffled again for each epoch; data sets and generators stay as
    they are.

    Raises:
        UserCodeError: the function raises, or returns what the interface does not know.
    """
    return feed.Feed(_Function(module, "training_data", request, shuffled=True).opened())


def evaluation(module: user.Module, request: Request) -> feed.Feed:
    """The examples to evaluate on, in their own order, prepared ahead; raises as `training`."""
    return feed.Feed(_Function(module, "evaluation_data", request, shuffled=False).opened())


class _Function:
    """A data function of the user's."""

    def __init__(self, module: user.Module, name: str, request: Request, *, shuffled: bool) -> None:
        self._module = module
        self._name = name
        self._request = request
        self._shuffled = shuffled

    def opened(self) -> batching.Source:
        """Make a feed of what it returns for epoch 0."""
        data = self._call(0)
        division = self._request.division
        if isinstance(data, keras.utils.PyDataset):
            py_batches = batches.of_py_dataset(data, self._name, self._order_seed)
            data = batches.Whole(py_batches, None, None, restarts=not self._shuffled)
        if isinstance(data, batching.Undivided):
            return data.divided(division)
        if isinstance(data, tf.data.Dataset):
            return self._stream(data)
        if isinstance(data, Iterator):
            return stream.GeneratedSource(self._generator, division, self._name)
        if isinstance(data, inputs.Records):
            index = rows.RecordIndex(data.paths, self._name)
            return self._rows(len(index), index.fetch, data.functions, index.fingerprint)
        if isinstance(data, inputs.Arrays):
            examples = arrays.checked(data.arrays, self._name)
            if data.functions:
                length = batching.count(examples)
                fingerprint = fingerprints.spread(examples, length)
                return self._rows(length, arrays.fetch(examples), data.functions, fingerprint)
        else:
            examples = arrays.checked(data, self._name)
        return arrays.ArraySource(examples, division, self._order_seed)

    @property
    def _order_seed(self) -> int | None:
        """Shuffles the examples; None keeps their order."""
        return self._request.context.seed if self._shuffled else None

    def _rows(
        self,
        length: int,
        fetch: Callable[[tf.Tensor], tuple[Any, ...]],
        functions: tuple[inputs.Function, ...],
        fingerprint: fingerprints.Fingerprint,
    ) -> batching.Source:
        examples = rows.Rows(
            length=length,
            fetch=fetch,
            functions=functions,
            seed=self._request.context.seed,
            shuffled=self._shuffled,
            fingerprint=fingerprint,
            function=self._name,
        )
        with user.guard(self._module.path, f"what examples of {self._name} go through raised"):
            return rows.RowsSource(examples, self._request.division)

    def _stream(self, data_set: tf.data.Dataset) -> batching.Source:
        stream_feed = stream.StreamSource(data_set, self._call, self._request.division, self._name)
        if stream_feed.endless and not (self._request.endless_allowed and self._shuffled):
            raise errors.UserCodeError(
                f"{self._name} returns a data set that never ends: remove .repeat()"
                + (", or give trainer.steps instead of trainer.epochs." if self._shuffled else ".")
            )
        return stream_feed

    def _generator(self, epoch: int) -> Iterator[Any]:
        return self._guarded(self._call(epoch))

    def _guarded(self, examples: Iterator[Any]) -> Generator[Any, None, None]:
        with user.guard(self._module.path, f"{self._name} raised"):
            yield from examples

    def _call(self, epoch: int) -> Any:
        """Call the function with all seeds set, the same on every process.

        Again for each epoch: a data set that shuffles gives another order when it is gone through
        again.
        """
        context = dataclasses.replace(self._request.context, epoch=epoch)
        with self._module.seeded((context.seed + epoch) % 2**31):
            if self._name == "training_data":
                return self._module.training_data(context)
            return self._module.evaluation_data(context)
