"""Batches are prepared ahead of the steps, and what training waits for them is measured."""

import itertools
import json
import pathlib
import threading
import time
import traceback
from collections.abc import Generator, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing import clock, waiting
from testing.trainer import launch, reference
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs
from tfparallel_trainer.data import batch_division, feed
from tfparallel_trainer.reporting import input_wait

Batches = Generator[batch_division.Batch, None, None]


class Numbers:
    """Epochs of ten batches of three examples each; the number of a batch is its only part."""

    examples: int | None = 30
    spec = None

    def sample(self) -> None:
        return None

    def epoch(self, number: int, start: int) -> Batches:
        return (batch_division.Batch(3, [(number, position)]) for position in range(start, 30, 3))


@given(epoch=st.integers(0, 3), count=st.integers(0, 10))
def test_a_feed_goes_on_where_the_state_of_another_says(epoch: int, count: int) -> None:
    first, second = feed.Feed(Numbers()), feed.Feed(Numbers())
    first.restore(feed.FeedPosition(epoch))
    batches = first.remaining()
    passed = [next(batches).parts for _ in range(count)]
    state = first.state  # of what is given; more is prepared
    batches.close()
    assert state == feed.FeedPosition(epoch, 3 * count)
    second.restore(state)
    remaining = [batch.parts for batch in second.remaining()]
    assert passed + remaining == [[(epoch, position)] for position in range(0, 30, 3)]
    second.end_epoch()
    assert second.state == feed.FeedPosition(epoch + 1)
    batches = second.remaining()
    assert next(batches).parts == [(epoch + 1, 0)]
    batches.close()


class Unknown(Numbers):
    """Its examples show at the end of an epoch: 30, and 12 of each later one."""

    examples = None

    def epoch(self, number: int, start: int) -> Batches:
        yield from itertools.islice(super().epoch(number, start), 4 if number else None)


def test_an_epoch_of_unknown_length_counts_as_long_as_the_first_that_ended() -> None:
    numbers = feed.Feed(Unknown())
    assert numbers.examples is None
    for _ in range(2):
        assert list(numbers.remaining())
        numbers.end_epoch()
        assert numbers.examples == 30


def batch(number: int) -> batch_division.Batch:
    return batch_division.Batch(number, [])


def room() -> threading.Semaphore:
    return threading.Semaphore(feed.BATCHES)


def input_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "input"]


@given(st.integers(0, 30))
def test_the_order_stays(count: int) -> None:
    batches = feed.prefetched((batch(number) for number in range(count)), room())
    assert [batch.examples for batch in batches] == list(range(count))
    assert input_threads() == []


def test_only_so_many_are_ready() -> None:
    numbers_drawn: list[int] = []

    def numbers() -> Batches:
        for number in range(100):
            numbers_drawn.append(number)
            yield batch(number)

    batches = feed.prefetched(numbers(), room())
    next(batches)
    waiting.until(lambda: len(numbers_drawn) == 1 + feed.BATCHES, "the batches ahead")
    time.sleep(0.05)
    assert len(numbers_drawn) == 1 + feed.BATCHES
    batches.close()
    assert input_threads() == []


def failing() -> Batches:
    yield batch(0)
    raise ValueError("no such picture")


def test_an_error_comes_in_its_place_with_its_frames() -> None:
    batches = feed.prefetched(failing(), room())
    assert next(batches).examples == 0
    with pytest.raises(ValueError, match="no such picture") as caught:
        next(batches)
    assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert input_threads() == []


def test_what_is_not_wanted_any_more_is_closed() -> None:
    closed = threading.Event()

    def endless() -> Batches:
        try:
            while True:
                yield batch(1)
        finally:
            closed.set()

    batches = feed.prefetched(endless(), room())
    next(batches)
    batches.close()
    assert closed.is_set()


def timed(virtual: clock.Clock, wait: input_wait.Wait, waits: list[float], step: float) -> None:
    def batches() -> Batches:
        for seconds in waits:
            virtual.advance(seconds)
            yield batch(1)

    for _ in wait.timed(batches()):
        virtual.advance(step)


def test_the_share_of_waiting_leaves_the_first_step_out() -> None:
    virtual = clock.Clock()
    wait = input_wait.Wait(virtual)
    timed(virtual, wait, [50.0, 1.0, 1.0], step=3.0)
    share = wait.recent()
    assert (share.waited, share.total, share.steps) == (2.0, 8.0, 2)
    assert share.share == 0.25
    assert wait.recent().share == 0.0


def test_a_warning_comes_once_an_epoch_and_names_the_share() -> None:
    virtual = clock.Clock()
    wait = input_wait.Wait(virtual)
    timed(virtual, wait, [0.0, 1.0, 1.0], step=3.0)
    warning = wait.warning()
    assert warning is not None
    assert "for 25% of the time (1000.0 of 4000.0 ms a step)" in warning
    assert wait.warning() is None
    timed(virtual, wait, [1.0], step=1.0)
    assert "50%" in (wait.warning() or "")


def test_short_epochs_are_looked_at_together() -> None:
    virtual = clock.Clock()
    wait = input_wait.Wait(virtual)
    shares = []
    for _ in range(4):
        timed(virtual, wait, [0.4], step=0.4)
        shares.append(wait.warning() is None)
    assert shares == [True, True, True, False]


@pytest.mark.parametrize("waits", [[0.0, 0.3, 0.3], [0.0, 1.0, *[0.0] * 20]])
def test_short_or_rare_waiting_is_no_warning(waits: list[float]) -> None:
    virtual = clock.Clock()
    wait = input_wait.Wait(virtual)
    timed(virtual, wait, waits, step=1.0)
    assert wait.warning() is None


def records(folder: pathlib.Path) -> Iterator[dict[str, dict[str, float]]]:
    for line in (folder / "output" / outputs.TRAIN_LOG).read_text().splitlines():
        record = json.loads(line)
        if record["event"] == "train":
            yield record


def test_a_run_whose_input_is_slow_says_so(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    """The data set of slow_stream sleeps for each example, and a step takes no time."""
    (given_to,) = launch.environments(
        tmp_path,
        reference.MODELS,
        {"module": "slow_stream.py", "epochs": 10, "globalBatchSize": 20},
    )
    with runs.group([given_to], logs=".") as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.DONE.value, ended.errors
    assert 1 <= ended.output.count("warning: input keeps the devices waiting for ") <= 10
    shares = [record["metrics"]["input_wait"] for record in records(tmp_path)]
    assert max(shares) > 0
