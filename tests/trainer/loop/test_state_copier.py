"""When the state is copied in memory: often, and never for more than a hundredth of the time."""

import threading
from collections.abc import Callable

import pytest

from testing import waiting
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.loop import state_copier


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def at(step: int) -> files.Position:
    return files.Position(step=step, epoch=0, example=step)


def copier_of(
    clock: Clock, complete: Callable[[], None], cpu_seconds: float = 0.0
) -> state_copier.StateCopier:
    cpu_times = iter(range(1000))
    return state_copier.StateCopier(
        lambda _: complete,
        decides=True,
        clock=clock,
        cpu_clock=lambda: cpu_seconds * next(cpu_times),
    )


def copy(copier: state_copier.StateCopier, clock: Clock, seconds: float) -> None:
    """Copy for a while, and complete the copy."""
    with copier.timed():
        copier.copy(at(1))
        clock.now += seconds
    copier.wait()


@pytest.mark.parametrize(("pause", "cpu"), [(0.5, 0.0), (0.25, 0.75), (0.001, 0.002)])
def test_a_copy_is_followed_by_99_times_its_cost(pause: float, cpu: float) -> None:
    clock = Clock()
    copier = copier_of(clock, lambda: None, cpu)
    copy(copier, clock, 1000.0)  # the first one counts for nothing
    assert copier.due
    for _ in range(3):
        copy(copier, clock, pause)
        clock.now += 98.9 * (pause + cpu)
        assert not copier.due
        clock.now += 0.2 * (pause + cpu)
        assert copier.due


def test_the_time_that_a_copy_takes_to_another_process_counts() -> None:
    clock, may_complete = Clock(), threading.Event()

    def complete() -> None:
        assert may_complete.wait(60)

    def exchange() -> None:
        clock.now += 2.0

    copier = state_copier.StateCopier(
        lambda _: complete, exchange=exchange, decides=True, clock=clock, cpu_clock=lambda: 0.0
    )
    for _ in range(2):
        may_complete.clear()
        with copier.timed():
            copier.copy(at(1))
            clock.now += 1.0
        may_complete.set()
        copier.wait()
    copier.complete(lambda: None)  # of a checkpoint, which no other process gets
    copier.wait()
    clock.now += 294.5
    assert not copier.due
    clock.now += 1.0
    assert copier.due


def test_a_checkpoint_stands_for_a_copy() -> None:
    clock = Clock()
    copier = copier_of(clock, lambda: None)
    for _ in range(2):
        copy(copier, clock, 1.0)
    clock.now += 98.0
    copier.postpone()
    clock.now += 98.0
    assert not copier.due
    clock.now += 1.5
    assert copier.due


def test_no_copy_begins_before_the_last_one_is_complete() -> None:
    clock, may_end, ended = Clock(), threading.Event(), list[int]()

    def complete() -> None:
        may_end.wait(60)
        ended.append(1)

    copier = copier_of(clock, complete)
    copier.copy(at(1))
    assert not copier.due
    may_end.set()
    copier.copy(at(2))
    assert ended[:1] == [1]
    copier.wait()
    assert ended == [1, 1]
    waiting.until(lambda: copier.due, "the end of the thread")


def test_no_process_gives_up_a_copy_before_all_have_the_next_one() -> None:
    events: list[str] = []

    def copy_state(position: files.Position) -> Callable[[], None]:
        events.append(f"copies {position.step}")
        return lambda: events.append("complete")

    copier = state_copier.StateCopier(copy_state, barrier=lambda: events.append("barrier"))
    for step in (1, 2):
        copier.copy(at(step))
    copier.wait()
    assert events == [
        "barrier",
        "copies 1",
        "complete",
        "barrier",
        "copies 2",
        "complete",
        "barrier",
    ]


def test_the_copy_of_a_checkpoint_is_complete_before_the_next_copy() -> None:
    events: list[str] = []
    copier = state_copier.StateCopier(
        lambda _: lambda: events.append("next"), barrier=lambda: events.append("barrier")
    )
    copier.complete(lambda: events.append("checkpoint"))
    copier.copy(at(2))
    copier.wait()
    assert events == ["checkpoint", "barrier", "next", "barrier"]


def test_a_process_that_does_not_decide_copies_on_request() -> None:
    copied: list[int] = []
    copier = state_copier.StateCopier(lambda position: lambda: copied.append(position.step))
    assert not copier.due
    copier.copy(at(3))
    copier.wait()
    assert (copied, copier.due) == ([3], False)


def test_a_process_without_copies_takes_part() -> None:
    copier = state_copier.StateCopier()
    with copier.timed():
        copier.copy(at(1))
    copier.wait()
    assert not copier.due


def test_a_copy_that_fails_ends_training() -> None:
    def fail() -> None:
        raise MemoryError

    copier = copier_of(Clock(), fail)
    copier.copy(at(1))
    with pytest.raises(MemoryError):
        copier.wait()
