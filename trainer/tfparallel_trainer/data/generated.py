"""Examples from a Python generator: every process goes through all and keeps its own part.

As with data sets the generator is called again for each epoch, and must yield the same in every
process. After a restart it runs up to the place where training goes on.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, feed, fingerprints


class GeneratedFeed:
    """Batches from generators of single examples.

    Args:
        make: gives a new generator of an epoch.
        division: how batches are cut.
        function: name of the user's data function, for the messages.
    """

    def __init__(
        self, make: Callable[[int], Iterator[Any]], division: feed.Division, function: str
    ) -> None:
        self._make = make
        self._division = division
        self._function = function
        self._sample = self._joined(list(itertools.islice(make(0), 1)))

    @property
    def examples(self) -> int | None:
        """Unknown before the end."""
        return None

    @property
    def spec(self) -> Any:
        """The structure of a part, as tf.TensorSpec [None, …]."""
        return feed.spec(self._sample)

    def sample(self) -> Any:
        """The first example, with a leading axis of 1."""
        return self._sample

    def epoch(self, number: int, start: int) -> Generator[feed.Batch, None, None]:
        """The batches of an epoch from position `start` on."""
        return self._cut(self._make(number), start)

    def _cut(self, examples: Iterator[Any], start: int) -> Generator[feed.Batch, None, None]:
        with contextlib.ExitStack() as stack:
            close = getattr(examples, "close", None)
            if close is not None:
                stack.callback(close)
            rest = itertools.islice(examples, start, None)
            while whole := list(itertools.islice(rest, self._division.batch_size)):
                yield feed.Batch(
                    examples=len(whole),
                    parts=[
                        self._joined(whole[part.start : part.stop]) if part else None
                        for part in self._division.parts(len(whole))
                    ],
                    fingerprint=fingerprints.of(
                        whole[:: max(len(whole) // fingerprints.EXAMPLES, 1)]
                    ),
                )

    def _joined(self, examples: Sequence[Any]) -> Any:
        """Stack examples, as (x, y, sample_weight)."""
        if not examples:
            raise errors.UserCodeError(f"{self._function} yields no examples: yield some.")
        for example in examples:
            is_tuple = isinstance(example, tuple) and len(example) in (1, 2, 3)
            if not is_tuple and not isinstance(example, np.ndarray | dict):
                raise errors.UserCodeError(
                    f"{self._function} yields {type(example).__name__}: yield x, (x, y) or "
                    "(x, y, sample_weight) of one example."
                )
        try:
            stacked = keras.tree.map_structure(lambda *rows: np.stack(rows), *examples)
        except ValueError as error:
            raise errors.UserCodeError(
                f"{self._function} yields examples of different shapes or structures ({error}): "
                "make them alike."
            ) from error
        return arrays.checked(stacked, self._function)
