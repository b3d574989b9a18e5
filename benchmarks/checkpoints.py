"""How long training stands still for checkpoints at the default interval."""

import dataclasses
import statistics

from benchmarks import processes, results

_INTERVAL = 100
"""Steps between two checkpoints by default."""


def measure(size: results.Size) -> list[results.Result]:
    """Run with as many steps in an epoch as lie between two checkpoints."""
    size = dataclasses.replace(size, examples=_INTERVAL * size.batch)
    settings: dict[str, object] = {
        "module": "cnn.py",
        "epochs": size.epochs,
        "globalBatchSize": size.batch,
        "checkpoint": {"claim": "kept"},
    }
    shares: list[float] = []
    saves: list[float] = []
    for _ in range(size.repeats):
        run = processes.trainer(settings, size)
        between = [event.moment for event in run.of_kind("checkpoint")]
        seconds = [event.number("seconds") for event in run.of_kind("checkpoint")]
        saves += seconds
        shares.append(100 * sum(seconds[1:]) / (between[-1] - between[0]))
    return [
        results.Result(
            what=f"training stands still for checkpoints, every {_INTERVAL} steps",
            target=5.0,
            bound=results.Bound.AT_MOST,
            value=statistics.median(shares),
            unit=" %",
            detail=f"of the time; {results.middle(saves)} each",
        )
    ]
