"""How long the planner says that a step takes, after calibration, against how long it takes."""

import dataclasses
import json
import statistics

from benchmarks import processes, results, steps
from tfparallel_trainer.contract import environment

MESHES: dict[str, dict[str, object]] = {
    "stage 2": {"stage": 2, "microbatches": 4},
    "one device": {},
    "tensor 2": {"tensor": 2},
    "data 2": {"data": 2},
}
BATCHES = {"dense": 256, "convolutions": 64, "decoder": 32, "recurrent": 64}
"""Examples of a step, by model."""
_MOST_PERCENT = 25.0
_STEPS = 12
_FIRST = 3
"""Steps before this one are not counted."""


def measure(size: results.Size) -> list[results.Result]:
    """Predict and run each model on each mesh."""
    return [_compared(size, model) for model in list(BATCHES)[: size.cases]]


def _compared(size: results.Size, model: str) -> results.Result:
    batch = min(BATCHES[model], size.batch * 2)
    size = dataclasses.replace(size, examples=batch, batch=batch)
    meshes = dict(list(MESHES.items())[: size.cases])
    more = {"BENCHMARK_MODEL": model}
    arguments = (batch, *map(json.dumps, meshes.values()))
    run = processes.script("predicted", arguments, size, more=more)
    planned = [event.number("seconds") for event in run.of_kind("planned")]
    measured = [_measured(size, mesh, more) for mesh in meshes.values()]
    ratios = [predicted / other for predicted, other in zip(planned, measured, strict=True)]
    return results.Result(
        what=f"planned step differs from the measured one, {model}",
        target=_MOST_PERCENT,
        bound=results.Bound.AT_MOST,
        value=100 * max(abs(ratio - 1) for ratio in ratios),
        unit=" %",
        detail="; ".join(
            f"{name}: {1000 * predicted:.0f} ms planned, {1000 * other:.0f} ms measured"
            for name, predicted, other in zip(meshes, planned, measured, strict=True)
        ),
    )


def _measured(size: results.Size, mesh: dict[str, object], more: dict[str, str]) -> float:
    """The median of the steps."""
    settings: dict[str, object] = {
        "module": "planned.py",
        "steps": _STEPS,
        "globalBatchSize": size.batch,
    }
    run = processes.trainer(
        settings,
        size,
        processes=2 if mesh else 1,
        more={environment.STEP_LOG: "1", **more},
        mesh=mesh or {"data": 1},
        pinned=True,
    )
    return statistics.median(steps.between(run.of_kind("step"))[_FIRST:])
