"""The feed of all engines: batches that are divided over ranks, from a source of them.

A thread prepares the next batches while a step runs, and what a step waits for them is measured.
"""

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from tfparallel_trainer.contract import progress
from tfparallel_trainer.data import fingerprints, nest, order

BATCHES = 2
"""How many batches may be ready and not asked for yet."""

_LEAVE_SECONDS = 2.0
"""How long the end of an epoch waits for a batch that nobody wants any more."""

_WAITED_SECONDS = 1.0
"""Waiting that is shorter in all is not worth a warning."""

_SPAN_SECONDS = 10.0
"""Epochs are looked at together until they are this long."""


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

    def parts(self, examples: int) -> list[range]:
        """Which of the examples of a batch each rank of this process has."""
        parts = order.split(examples, self.ranks)
        return [parts[rank] for rank in self.local_ranks]

    def cut(
        self, whole: Any, fingerprint: fingerprints.Fingerprint = fingerprints.NOTHING
    ) -> Batch:
        """Divide a whole batch (x, y, sample_weight) over the ranks."""
        examples = count(whole)
        parts = [rows(whole, part) for part in self.parts(examples)]
        return Batch(examples=examples, parts=parts, fingerprint=fingerprint)


class Source(Protocol):
    """Where batches come from."""

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
class Undivided(Protocol):
    """Makes a source by itself once it knows how batches are cut."""

    def divided(self, division: Division) -> Source:
        """Cut batches in this way."""


def count(whole: Any) -> int:
    """How many examples a batch has."""
    return int(nest.leaves(whole)[0].shape[0])


def rows(whole: Any, part: range) -> Any:
    """Consecutive examples of a batch; None where there are none."""
    if not part:
        return None
    return nest.convert(lambda leaf: leaf[part.start : part.stop], whole)


def spec(batch: Any) -> Any:
    """The structure of a part of such a batch, as tf.TensorSpec [None, …]."""
    return nest.convert(lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype), batch)


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The place of a feed: where the batches that it has given end."""

    epoch: int = 0
    example: int = 0
    """How many examples of the epoch are given."""


class Feed:
    """The batches of all epochs, prepared before they are asked for.

    The user's data function runs in the thread that asks for batches; only what reads, converts and
    cuts examples runs in one of its own. The place is that of the batches that are given, so it
    knows nothing of what is prepared.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.spec = source.spec
        self.sample = source.sample
        self._state = State()
        self._length: int | None = None
        self.wait = Wait()
        """How long this process waits for its batches."""

    @property
    def examples(self) -> int | None:
        """Examples in an epoch, where the source knows or an epoch has ended."""
        known = self._source.examples
        return self._length if known is None else known

    @property
    def state(self) -> State:
        """Where the next batch begins."""
        return self._state

    def restore(self, state: State) -> None:
        """Let the next batch be that which begins there."""
        self._state = state

    def epoch(self, number: int, start: int) -> Generator[Batch, None, None]:
        """The batches of an epoch from the example at position `start` on."""
        self.restore(State(number, start))
        return self.rest()

    def rest(self) -> Generator[Batch, None, None]:
        """The batches of this epoch that are not given yet."""
        batches = self._source.epoch(self._state.epoch, self._state.example)
        return self._counted(self.wait.timed(prefetched(batches)))

    def end_epoch(self) -> None:
        """Go on with the next epoch; what is left of this one is left out."""
        if self._length is None:
            self._length = self._state.example
        self._state = State(self._state.epoch + 1)

    def _counted(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        with contextlib.closing(batches):
            for batch in batches:
                example = self._state.example + batch.examples
                self._state = dataclasses.replace(self._state, example=example)
                yield batch


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    """What comes after the last batch."""

    error: BaseException | None


def prefetched(batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
    """Go through batches that are prepared ahead; closing this ends the thread.

    An error of the batches comes where the batch would have come, with its own traceback.
    """
    room = threading.Semaphore(BATCHES)
    ready: queue.SimpleQueue[Batch | _End] = queue.SimpleQueue()
    leaving = threading.Event()

    def prepare() -> None:
        error = None
        try:
            with contextlib.closing(batches):
                while room.acquire() and not leaving.is_set():
                    ready.put(next(batches))
        except StopIteration:
            pass
        except BaseException as caught:  # also SystemExit of the user's code
            error = caught
        ready.put(_End(error))

    thread = threading.Thread(target=prepare, name="input", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            room.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        leaving.set()
        room.release()
        thread.join(_LEAVE_SECONDS)


@dataclasses.dataclass(slots=True)
class Span:
    """Steps, and how long they took with and without waiting."""

    waited: float = 0.0
    """Seconds from asking for a batch to having it."""
    total: float = 0.0
    """Seconds from asking for a batch to asking for the next one."""
    steps: int = 0

    @property
    def share(self) -> float:
        """Which part of the time was waiting."""
        return self.waited / self.total if self.total else 0.0

    def add(self, waited: float, total: float) -> None:
        """Take in a step."""
        self.waited += waited
        self.total += total
        self.steps += 1


class Wait:
    """Keeps the time of this process's input.

    The first step of all is left out. Its time is mostly tracing, and its batch may come late
    because a resumed epoch is read over.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._recent = Span()
        self._lately = Span()
        self._began = False
        self._warned = False

    def timed(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """Hand out the batches of an epoch, and time them."""
        if self._lately.total >= _SPAN_SECONDS:
            self._lately = Span()
        self._warned = False
        with contextlib.closing(batches):
            asked = self._clock()
            for batch in batches:
                arrival = self._clock()
                yield batch
                done = self._clock()
                if self._began:
                    self._recent.add(arrival - asked, done - asked)
                    self._lately.add(arrival - asked, done - asked)
                self._began = True
                asked = done

    def recent(self) -> Span:
        """What is new since the last call."""
        span, self._recent = self._recent, Span()
        return span

    def warning(self) -> str | None:
        """A sentence when input has kept the devices waiting lately; at most once an epoch."""
        span = self._lately
        if self._warned or span.waited < _WAITED_SECONDS or span.share <= progress.MAX_INPUT_WAIT:
            return None
        self._warned = True
        self._lately = Span()
        return (
            f"input keeps the devices waiting for {span.share:.0%} of the time "
            f"({1000 * span.waited / span.steps:.1f} of {1000 * span.total / span.steps:.1f} ms "
            "a step). Let the data functions do less for each example or do it in parallel "
            "(num_parallel_calls, cache), or give each replica more CPUs"
        )
