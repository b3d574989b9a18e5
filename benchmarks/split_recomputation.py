"""What `mesh.recompute` saves of the memory of a step, and what it costs of its time."""

from benchmarks import processes, results

_STAGES = 3
_MICROBATCHES = 12
_ROWS = 4096
"""Examples of a microbatch: of smaller tensors the profiler does not tell."""
_STEPS = 10


def measure(size: results.Size) -> list[results.Result]:
    """Run ranks as devices of one process."""
    arguments = (_STAGES, _MICROBATCHES, _ROWS, _STEPS)
    run = processes.script("recomputed_steps", arguments, size)
    peaks = {event.facts["recomputes"]: event.number("bytes") for event in run.of_kind("peak")}
    ours, theirs = (
        [step.number("seconds") for step in run.of_kind("step") if step.facts["recomputes"] is kind]
        for kind in (True, False)
    )
    where = f"{_STAGES} stages, {_MICROBATCHES} microbatches, dense layers"
    return [
        results.Result(
            what=f"memory of a step with mesh.recompute, {where}",
            target=0.6,
            bound=results.Bound.AT_MOST,
            value=peaks[True] / peaks[False],
            unit=" x",
            detail=f"{peaks[True] / 1e6:.3g} MB at the peak against {peaks[False] / 1e6:.3g} MB",
        ),
        results.ratio(
            f"step with mesh.recompute, {where}",
            1.4,
            ours,
            theirs,
            f"the same without; {_STEPS} steps of each, in turns",
        ),
    ]
