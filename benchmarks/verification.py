"""What the checks of `trainer.verify` cost: `Off`, `Auto` and `Always` in turns."""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from benchmarks import processes, results
from tfparallel_trainer.contract.job_file import Verify

_STEPS = 10_000
_CHECKS = 14
"""Checks of so many steps with `Auto`: of steps 1, 2, 4 and so on to 8,192."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Times:
    """What a run took."""

    start: float
    """Seconds until the first epoch has ended."""
    step: float
    """Seconds of a step of the later epochs, as a mean."""


def measure(size: results.Size) -> list[results.Result]:
    """Run with each value in turns."""
    runs: dict[Verify, list[_Times]] = {verify: [] for verify in Verify}
    for verify in [*Verify] * size.repeats:
        runs[verify].append(_trained(size, verify))
    step, always = (_median_step(runs[verify]) for verify in (Verify.OFF, Verify.ALWAYS))
    check = always - step
    starts = {verify: statistics.median(times.start for times in runs[verify]) for verify in Verify}
    others = size.steps.bit_length() - 1  # checks of the first epoch after that of step 1
    first = starts[Verify.AUTO] - starts[Verify.OFF] - others * check
    return [
        results.Result(
            what=f"checks of {_STEPS} steps against one process, 1 process with 2 devices",
            target=2.0,
            bound=results.Bound.AT_MOST,
            value=100 * (first + (_CHECKS - 1) * check) / (_STEPS * step),
            unit=" %",
            detail=f"of the steps; the first check {first:.2f} s, each other {1000 * check:.0f} ms;"
            f" a step {1000 * step:.1f} ms with `Off`, {1000 * always:.1f} ms with `Always`",
        )
    ]


def _trained(size: results.Size, verify: Verify) -> _Times:
    settings: dict[str, object] = {
        "module": "cnn.py",
        "epochs": size.epochs,
        "globalBatchSize": size.batch,
        "verify": verify.value,
    }
    run = processes.trainer(settings, size, devices=2)
    steps = [size.steps * epoch for epoch in range(1, size.epochs + 1)]
    ends = {int(event.number("step")): event.moment for event in run.of_kind("train")}
    times = [ends[step] for step in steps]
    seconds = [end - begin for begin, end in itertools.pairwise(times)]
    return _Times(times[0] - run.started, statistics.mean(seconds) / size.steps)


def _median_step(runs: Sequence[_Times]) -> float:
    return statistics.median(run.step for run in runs)
