"""The time of a step, against a minimal loop under the same strategy and against Keras' fit."""

import functools
import itertools
from collections.abc import Callable
from typing import TypeVar

from benchmarks import processes, results

Sample = TypeVar("Sample")


def measure(size: results.Size) -> list[results.Result]:
    """Run the trainer and each other one in turns."""
    loop = functools.partial(processes.script, "strategy_loop")
    arguments = (size.epochs, size.batch)
    compared = (
        (
            "step, Mirrored, 1 process with 2 devices",
            1.03,
            lambda: _trained(size, devices=2),
            lambda: _seconds(loop(("Mirrored", *arguments), size), "epoch", size),
            "a minimal loop",
        ),
        (
            "step, MultiWorkerMirrored, 2 processes",
            1.03,
            lambda: _trained(size, count=2),
            lambda: _seconds(loop(("MultiWorkerMirrored", *arguments), size, 2), "epoch", size),
            "a minimal loop",
        ),
        (
            "step, 1 process",
            1.05,
            lambda: _trained(size),
            lambda: _seconds(processes.script("keras_fit", arguments, size), "epoch", size),
            "Keras' fit",
        ),
    )
    return [
        results.ratio(what, target, *in_turns(ours, theirs, size.repeats), other)
        for what, target, ours, theirs, other in compared
    ]


def in_turns(
    ours: Callable[[], list[Sample]], theirs: Callable[[], list[Sample]], repeats: int
) -> tuple[list[Sample], list[Sample]]:
    """Take samples of two sides by turns, so that both meet the same state of the machine."""
    first: list[Sample] = []
    second: list[Sample] = []
    for _ in range(repeats):
        first += ours()
        second += theirs()
    return first, second


def _trained(size: results.Size, *, count: int = 1, devices: int = 1) -> list[float]:
    settings: dict[str, object] = {
        "module": "cnn.py",
        "epochs": size.epochs,
        "globalBatchSize": size.batch,
    }
    run = processes.trainer(settings, size, processes=count, devices=devices)
    return _seconds(run, "train", size)


def _seconds(run: processes.Run, kind: str, size: results.Size) -> list[float]:
    """Seconds of a step, as a mean over each epoch but the first."""
    ends = {
        int(event.number("epoch")): event.moment
        for event in run.of_kind(kind)
        if "step" not in event.facts or event.number("step") == event.number("epoch") * size.steps
    }
    return [(ends[epoch] - ends[epoch - 1]) / size.steps for epoch in sorted(ends) if epoch > 1]


def between(events: list[processes.Event]) -> list[float]:
    """Seconds of each step but the first, from events at the ends of steps."""
    times = [event.moment for event in events]
    return [end - begin for begin, end in itertools.pairwise(times)]
