"""Which replica stays slower than the others, by what each has spent on its steps."""

from collections.abc import Mapping

import pytest

from testing import clock
from tfparallel_trainer.reporting import stragglers


class SimulatedRun:
    """Replicas that make steps, of which each takes the seconds that its replica is given."""

    def __init__(self, *, waits: bool = False) -> None:
        self._clock = clock.Clock(1000.0)
        self._waits = waits
        self._steps: dict[str, float] = {}
        self._worked: dict[str, float] = {}
        self.paces = stragglers.PaceComparison(self._clock)

    def go_on(self, seconds: int, **step_seconds: float) -> list[str]:
        """Report each second; return the sentences for people."""
        news = []
        for _ in range(seconds):
            self._clock.advance(1)
            slowest = max(step_seconds.values())
            for replica, duration in step_seconds.items():
                self._steps[replica] = self._steps.get(replica, 0) + 1 / (
                    slowest if self._waits else duration
                )
                share = duration / slowest if self._waits else 1
                self._worked[replica] = self._worked.get(replica, 0) + share
            news.append(self.paces.add(self._efforts(step_seconds)))
        return [sentence for sentence in news if sentence is not None]

    def _efforts(self, step_seconds: Mapping[str, float]) -> dict[str, stragglers.Effort]:
        return {
            replica: stragglers.Effort(int(self._steps[replica]), self._worked[replica])
            for replica in step_seconds
        }


@pytest.mark.parametrize("waits", [False, True])
def test_a_replica_that_stays_slow_is_named_until_it_keeps_up(waits: bool) -> None:
    run = SimulatedRun(waits=waits)
    assert run.go_on(29, a=0.1, b=0.11, c=0.1) == []
    assert run.go_on(60, a=0.1, b=0.11, c=0.1) == [], "all are alike"
    assert run.paces.straggler is None
    (slow,) = run.go_on(60, a=0.1, b=0.5, c=0.1)
    assert slow.startswith("warning: b is slow: in the last 3")
    assert run.paces.straggler == "b"
    assert run.go_on(60, a=0.1, b=0.14, c=0.1) == [], "it is still slower than the others"
    assert run.paces.straggler == "b"
    assert run.go_on(60, a=0.1, b=0.11, c=0.1) == ["b keeps up with the other replicas again"]
    assert run.paces.straggler is None


def test_the_times_of_a_step_are_said() -> None:
    run = SimulatedRun()
    (slow,) = run.go_on(40, a=0.25, b=1.0, c=0.25)
    assert slow == (
        "warning: b is slow: in the last 30 s, its steps took 1 s each, and those of the other"
        " replicas 250 ms"
    )
    run = SimulatedRun()
    (slow,) = run.go_on(40, a=0.25, b=1000.0)
    assert slow == "warning: b is slow: it has made no step for 30 s"


def test_a_slow_moment_makes_no_straggler() -> None:
    run = SimulatedRun()
    run.go_on(60, a=0.1, b=0.1)
    assert run.go_on(5, a=0.1, b=1.0) == []
    assert run.go_on(60, a=0.1, b=0.1) == []
    assert run.paces.straggler is None


def test_the_slowest_of_two_is_named_and_then_the_other() -> None:
    run = SimulatedRun()
    run.go_on(60, a=0.1, b=0.5, c=0.1, d=0.1, e=0.6)
    assert run.paces.straggler == "e"
    run.go_on(60, a=0.1, b=0.6, c=0.1, d=0.1, e=0.5)
    assert run.paces.straggler == "e", "it is no better, so the name does not change"
    run.go_on(60, a=0.1, b=0.6, c=0.1, d=0.1, e=0.1)
    assert run.paces.straggler == "b"


def test_an_absent_replica_is_none_and_begins_anew() -> None:
    run = SimulatedRun()
    run.go_on(60, a=0.1, b=0.5)
    assert run.paces.straggler == "b"
    assert run.go_on(3, a=0.1) == []
    assert run.paces.straggler is None
    assert run.go_on(29, a=0.1, b=0.5) == [], "it is not yet here for a whole window"
    assert len(run.go_on(5, a=0.1, b=0.5)) == 1


def test_few_steps_say_nothing() -> None:
    run = SimulatedRun()
    assert run.go_on(89, a=10, b=20) == []
    assert run.paces.straggler is None
    run.go_on(60, a=10, b=20)
    assert run.paces.straggler == "b"


def test_little_work_between_long_waits_holds_nobody_up() -> None:
    """Both wait for the network; the work of one takes twice as long, and 4 % of the time."""
    virtual = clock.Clock()
    compared = stragglers.PaceComparison(virtual)
    for second in range(100):
        virtual.advance(1)
        steps = 10 * second
        efforts = {
            "a": stragglers.Effort(steps, 0.002 * steps),
            "b": stragglers.Effort(steps, 0.004 * steps),
        }
        assert compared.add(efforts) is None
    assert compared.straggler is None
