"""What the planner says of the memory of each device, against runs."""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Sequence

from benchmarks import processes, results, split_predicted
from tfparallel_trainer.contract import environment

MESHES: dict[str, dict[str, object]] = {
    "stage 2": {"stage": 2, "microbatches": 4},
    "stage 2 with recompute": {"stage": 2, "microbatches": 4, "recompute": True},
    "data 2": {"data": 2},
    "data 2 with shardOptimizer": {"data": 2, "shardOptimizer": True},
}
MODELS = ("dense", "convolutions", "decoder")
"""The gates of the recurrent model are too small to be counted."""
_MOST_PERCENT = 20.0
_LEAST_WIDTH = 512
"""Of layers whose weights are large enough to be counted."""
_STEPS = 20
_FIRST = 3
"""Steps before this one are not counted."""
_MEGA = 1e6


def measure(size: results.Size) -> list[results.Result]:
    """Plan and run each model on each mesh."""
    return [_compared(size, model) for model in MODELS[: size.cases]]


def _compared(size: results.Size, model: str) -> results.Result:
    batch = split_predicted.BATCHES[model]
    size = dataclasses.replace(
        size, examples=batch, batch=batch, width=max(size.width, _LEAST_WIDTH)
    )
    meshes = dict(list(MESHES.items())[: size.cases])
    more = {"BENCHMARK_MODEL": model}
    arguments = (batch, *map(json.dumps, meshes.values()))
    run = processes.script("planned_memory", arguments, size, more=more)
    planned = [event.facts["peaks"] for event in run.of_kind("planned")]
    measured = [_measured(size, mesh, more) for mesh in meshes.values()]
    ratios = [
        expected / peak
        for pair in zip(planned, measured, strict=True)
        for expected, peak in zip(*pair, strict=True)
    ]
    return results.Result(
        what=f"planned memory of a device differs from the measured one, {model}",
        target=_MOST_PERCENT,
        bound=results.Bound.AT_MOST,
        value=100 * max(abs(ratio - 1) for ratio in ratios),
        unit=" %",
        detail="; ".join(
            f"{name}: {_shown(expected)} MB planned, {_shown(peaks)} MB measured"
            for name, expected, peaks in zip(meshes, planned, measured, strict=True)
        ),
    )


def _shown(peaks: Sequence[float]) -> str:
    """Those of both devices."""
    return " and ".join(f"{peak / _MEGA:.0f}" for peak in peaks)


def _measured(size: results.Size, mesh: dict[str, object], more: dict[str, str]) -> Sequence[float]:
    """The most bytes that each process takes at one time."""
    settings: dict[str, object] = {
        "module": "recorded_memory.py",
        "steps": _STEPS,
        "globalBatchSize": size.batch,
    }
    with tempfile.TemporaryDirectory() as name:
        run = processes.trainer(
            settings,
            size,
            processes=2,
            more={environment.STEP_LOG: "1", "BENCHMARK_MEMORY": name, **more},
            mesh=mesh,
            pinned=True,
        )
        steps = run.of_kind("step")
        begin, end = steps[_FIRST].moment, steps[-1].moment
        peaks = []
        for file in sorted(pathlib.Path(name).iterdir()):  # the chief's is the first
            lines = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
            peaks.append(max(float(peak) for moment, peak in lines if begin < float(moment) < end))
        return peaks
