"""How much of the time two stages work, and the same pipeline driven by a single client.

The efficiency of s stages is T(1) / (s T(s)): T(1) is a step of one process with one thread that
does the work of all stages, T(s) that of s processes with a core each.
"""

import dataclasses
import statistics

from benchmarks import processes, results, steps
from tfparallel_trainer.contract import environment

STAGES = 2
MICROBATCHES = 8
_STEPS = 6
_ROWS = 512
"""Examples in a microbatch: a stage of the full width works on it for more than 100 ms."""


def measure(size: results.Size) -> list[results.Result]:
    """Run one process, the pipeline of two, and the single client in turns."""
    rows = min(_ROWS, size.batch * 6)
    batch = rows * MICROBATCHES
    size = dataclasses.replace(size, examples=batch, batch=batch, epochs=_STEPS)
    repeats = max(1, size.repeats // 2)
    alone: list[float] = []
    ours: list[float] = []
    client: list[float] = []
    for _ in range(repeats):
        alone += _trained(size, 1)
        ours += _trained(size, STAGES)
        client += _single_client(size)
    single, two, other = map(statistics.median, (alone, ours, client))
    ideal = MICROBATCHES / (MICROBATCHES + STAGES - 1)
    return [
        results.Result(
            what=f"efficiency of {STAGES} stages, {MICROBATCHES} microbatches",
            target=round(0.9 * ideal, 2),
            bound=results.Bound.AT_LEAST,
            value=single / (STAGES * two),
            unit="",
            detail=f"{results.middle(ours)} against {results.middle(alone)} in one process; the "
            f"bubble leaves {ideal:.3f}; a stage works {1000 * single / STAGES / MICROBATCHES:.0f} "
            "ms on a microbatch",
        ),
        results.Result(
            what="step of the pipeline, over that of a single client with the same stages",
            target=1.0,
            bound=results.Bound.AT_MOST,
            value=two / other,
            unit=" x",
            detail=f"{results.middle(ours)} against {results.middle(client)}",
        ),
    ]


def _trained(size: results.Size, stages: int) -> list[float]:
    settings: dict[str, object] = {
        "module": "layers.py",
        "steps": _STEPS,
        "globalBatchSize": size.batch,
    }
    run = processes.trainer(
        settings,
        size,
        processes=stages,
        more={environment.STEP_LOG: "1"},
        mesh={"stage": stages, "microbatches": MICROBATCHES},
        pinned=True,
    )
    return steps.between(run.of_kind("step"))


def _single_client(size: results.Size) -> list[float]:
    arguments = (_STEPS, size.batch, STAGES, MICROBATCHES)
    run = processes.script("single_client", arguments, size, STAGES, pinned=True)
    return steps.between(run.of_kind("step"))
