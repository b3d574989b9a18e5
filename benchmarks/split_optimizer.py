"""What `mesh.shardOptimizer` saves of the optimizer's state, and what it costs of a step."""

import dataclasses
import statistics

from benchmarks import processes, results, steps
from tfparallel_trainer.contract import environment

_PROCESSES = 2
_REPLICAS = (2, 4)
_ROWS = 16
"""Examples in a batch, of 64 tokens each."""
_STEPS = 12


def measure(size: results.Size) -> list[results.Result]:
    """Count bytes on ranks that are devices of one process, and run both kinds of jobs in turns."""
    [whole] = _state(size, 1)
    shares = {count: max(_state(size, count)) * count / whole for count in _REPLICAS}
    listed = ", ".join(f"{share:.3f} x on data {count}" for count, share in shares.items())
    rows = min(_ROWS, size.batch)
    size = dataclasses.replace(size, examples=rows * _STEPS, batch=rows)
    ours, theirs = steps.in_turns(
        lambda: _trained(size, shards=True), lambda: _trained(size, shards=False), size.repeats
    )
    return [
        results.Result(
            what="Adam's state of a device with mesh.shardOptimizer, attention",
            target=1.05,
            bound=results.Bound.AT_MOST,
            value=max(shares.values()),
            unit=" x",
            detail=f"of the {whole / 1e6:.3g} MB of the whole divided by the ranks: {listed}",
        ),
        results.ratio(
            f"step, {_PROCESSES} processes, mesh of only data with shardOptimizer, decoder",
            1.1,
            ours,
            theirs,
            f"the same without; {size.repeats} turns",
        ),
    ]


def _state(size: results.Size, replicas: int) -> list[float]:
    run = processes.script("rank_bytes", ("attention", 1, 1, replicas), size)
    return [event.number("state") for event in run.of_kind("rank")]


def _trained(size: results.Size, *, shards: bool) -> list[float]:
    """The median of the steps but the first."""
    settings: dict[str, object] = {
        "module": "planned.py",
        "steps": _STEPS,
        "globalBatchSize": size.batch,
        "verify": "Off",
    }
    run = processes.trainer(
        settings,
        size,
        processes=_PROCESSES,
        more={environment.STEP_LOG: "1", "BENCHMARK_MODEL": "decoder"},
        mesh={"data": _PROCESSES, "shardOptimizer": shards},
        pinned=True,
    )
    return [statistics.median(steps.between(run.of_kind("step")))]
