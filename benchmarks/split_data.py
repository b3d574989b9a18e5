"""A mesh that only divides the batch, against MultiWorkerMirrored: the time of a step."""

import statistics

from benchmarks import processes, results, steps
from tfparallel_trainer.contract import environment

_PROCESSES = 2


def measure(size: results.Size) -> list[results.Result]:
    """Run both in turns."""
    ours, theirs = steps.in_turns(
        lambda: _trained(size, {"data": _PROCESSES}), lambda: _trained(size, None), size.repeats
    )
    return [
        results.ratio(
            f"step, {_PROCESSES} processes, mesh of only data",
            1.03,
            ours,
            theirs,
            f"MultiWorkerMirrored; {size.repeats} turns",
        )
    ]


def _trained(size: results.Size, mesh: dict[str, object] | None) -> list[float]:
    """The median of the steps of each epoch but the first."""
    settings: dict[str, object] = {
        "module": "cnn.py",
        "epochs": size.epochs,
        "globalBatchSize": size.batch,
    }
    run = processes.trainer(
        settings,
        size,
        processes=_PROCESSES,
        more={environment.STEP_LOG: "1"},
        mesh=mesh,
        pinned=True,
    )
    ends = run.of_kind("step")
    return [
        statistics.median(steps.between(ends[first : first + size.steps]))
        for first in range(size.steps, len(ends), size.steps)
    ]
