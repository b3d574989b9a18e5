"""What `mesh.shardOptimizer` saves of the optimizer's state, and what it costs of a step."""

import dataclasses

from benchmarks import processes, results

_REPLICAS = (2, 4)
_ROWS = 32
"""Examples in a batch, of 64 tokens each."""
_STEPS = 10


def measure(size: results.Size) -> list[results.Result]:
    """Count bytes on ranks that are devices of one process, and let steps of both alternate."""
    [whole] = _state(size, 1)
    shares = {count: max(_state(size, count)) * count / whole for count in _REPLICAS}
    listed = ", ".join(f"{share:.3f} x on data {count}" for count, share in shares.items())
    rows = min(_ROWS, size.batch)
    run = processes.script(
        "shared_updates",
        (rows, _STEPS),
        dataclasses.replace(size, examples=rows),
        2,
        pinned=True,
        more={"BENCHMARK_MODEL": "decoder"},
    )
    ours, theirs = (
        [step.number("seconds") for step in run.of_kind("step") if step.facts["shards"] is shards]
        for shards in (True, False)
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
            "step, 2 processes, mesh of only data with shardOptimizer, decoder",
            1.1,
            ours,
            theirs,
            f"the same without; {_STEPS} steps of each, in turns",
        ),
    ]


def _state(size: results.Size, replicas: int) -> list[float]:
    run = processes.script("rank_bytes", ("attention", 1, 1, replicas), size)
    return [event.number("state") for event in run.of_kind("rank")]
