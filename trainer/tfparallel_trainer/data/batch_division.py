"""Batches, their division over ranks, and their sources."""

import dataclasses
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from tfparallel_trainer.data import fingerprints, nest, order


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The examples of one optimizer step."""

    examples: int
    """Number of examples over all ranks."""
    parts: list[Any]
    """For each replica of this process (x, y, sample_weight) with [n, …] each; sample_weight may be
    None. None for a replica that has no example in this step."""
    fingerprint: fingerprints.Fingerprint = fingerprints.NOTHING
    """The same in every process that was given the same examples (see `data.fingerprints`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchSharding:
    """How batches are divided."""

    batch_size: int
    """Examples over all ranks."""
    ranks: int
    """Ranks that a batch is divided over."""
    local_ranks: tuple[int, ...]
    """The ranks that belong to this process."""

    def parts(self, positions: range) -> list[range]:
        """The range of a batch's examples for each rank of this process."""
        parts = order.split(len(positions), self.ranks)
        return [positions[parts[rank].start : parts[rank].stop] for rank in self.local_ranks]

    def cut(
        self,
        batches: Iterable[Any],
        start: int,
        fingerprint: Callable[[Any], fingerprints.Fingerprint] = lambda _: fingerprints.NOTHING,
    ) -> Generator[Batch, None, None]:
        """Divide batches (x, y, sample_weight) over ranks, without the first `start` examples."""
        passed = 0
        for whole in map(nest.triple, batches):
            examples = count(whole)
            passed += examples
            if passed > start:
                parts = [rows(whole, part) for part in self.parts(range(examples))]
                yield Batch(examples, parts, fingerprint(whole))


class BatchSource(Protocol):
    """A source of batches."""

    @property
    def examples(self) -> int | None:
        """Number of examples in an epoch; None: known only at its end."""

    @property
    def spec(self) -> Any:
        """The structure of a part, as tf.TensorSpec [None, …]."""

    def sample(self) -> Any:
        """One example as (x, y, sample_weight), each with a leading axis of 1."""

    def epoch(self, number: int, start: int) -> Generator[Batch, None, None]:
        """The batches of an epoch from the example at position `start` on."""


@runtime_checkable
class Indexed(Protocol):
    """A source whose examples can be read in any order."""

    def targets(self, count: int) -> Any:
        """The targets (y) of up to so many examples from all over the source; None without y."""


@runtime_checkable
class Shardable(Protocol):
    """Creates its own source, once it knows how batches are divided."""

    def divided(self, division: BatchSharding) -> BatchSource:
        """Divide batches in this way."""


def count(whole: Any) -> int:
    """The number of examples in a batch."""
    return int(nest.leaves(whole)[0].shape[0])


def rows(whole: Any, part: range) -> Any:
    """Consecutive examples of a batch; None: there are none."""
    if not part:
        return None
    return nest.convert(lambda leaf: leaf[part.start : part.stop], whole)


def spec(batch: Any) -> Any:
    """The structure of a part of such a batch, as tf.TensorSpec [None, …]."""
    return nest.convert(lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype), batch)
