"""Batches that are divided over ranks: what the step takes, and what a source of them offers."""

import dataclasses
from collections.abc import Generator
from typing import Any, Protocol, runtime_checkable

from tfparallel_trainer.data import fingerprints


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """The examples of one optimizer step."""

    examples: int
    """How many over all ranks."""
    parts: list[Any]
    """For each replica of this process (x, y, sample_weight) with [n, …] each; sample_weight may be
    None. None for a replica that has no example in this step."""
    fingerprint: fingerprints.Fingerprint = fingerprints.NOTHING
    """The same in every process that was given the same examples (see `data.fingerprints`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """How batches are cut."""

    batch_size: int
    """Examples over all ranks."""
    ranks: int
    """Ranks that a batch is divided over."""
    local_ranks: tuple[int, ...]
    """Which of them belong to this process."""


class Feed(Protocol):
    """A source of batches."""

    @property
    def examples(self) -> int | None:
        """Examples in an epoch; None when that shows only at its end."""

    @property
    def spec(self) -> Any:
        """The structure of a part, as tf.TensorSpec [None, …]."""

    def sample(self) -> Any:
        """One example as (x, y, sample_weight), each with a leading axis of 1."""

    def epoch(self, number: int, start: int) -> Generator[Batch, None, None]:
        """The batches of an epoch from the example at position `start` on."""


@runtime_checkable
class Source(Protocol):
    """Makes a feed by itself once it knows how batches are cut."""

    def divided(self, division: Division) -> Feed:
        """Cut batches in this way."""
