"""What each device holds of a model that is split: weights and their state, and activations."""

from benchmarks import processes, results

_MESHES = ((2, 1), (1, 2), (2, 2))
_MODELS = ("dense", "convolutions", "attention")
_STAGES = 3
_MICROBATCHES = 12
_ROWS = 4096
"""Examples of a microbatch: of smaller tensors the profiler does not tell."""


def measure(size: results.Size) -> list[results.Result]:
    """Build and run ranks as devices of one process."""
    measured = [_bytes(size, model) for model in _MODELS]
    run = processes.script("activations", (_STAGES, _MICROBATCHES, _ROWS), size)
    (activations,) = run.of_kind("held")
    detail = f"on average of {_STAGES} stages, of {_MICROBATCHES} microbatches in a step; "
    measured.append(
        results.Result(
            what=f"microbatches whose activations a stage holds, 1F1B in {_STAGES} stages",
            target=float(_STAGES),
            bound=results.Bound.AT_MOST,
            value=activations.number("bounded"),
            unit="",
            detail=f"{detail}{activations.number('unbounded'):.3g} under GPipe",
        )
    )
    return measured


def _bytes(size: results.Size, model: str) -> results.Result:
    (whole,) = _ranks(size, model, 1, 1)
    shares = {mesh: max(_ranks(size, model, *mesh)) * mesh[0] * mesh[1] / whole for mesh in _MESHES}
    detail = ", ".join(
        f"{share:.3f} x on stage {stages} x tensor {tensor}"
        for (stages, tensor), share in shares.items()
    )
    return results.Result(
        what=f"weights, gradients and Adam's state of a device, {model}",
        target=1.1,
        bound=results.Bound.AT_MOST,
        value=max(shares.values()),
        unit=" x",
        detail=f"of the {whole / 1e6:.0f} MB of the whole divided by the ranks: {detail}",
    )


def _ranks(size: results.Size, model: str, stages: int, tensor: int) -> list[float]:
    """The bytes of each rank.

    Its variables and gradients by their shapes, or what TensorFlow has allocated for the variables
    where that is more: it counts large pieces only.
    """
    run = processes.script("rank_bytes", (model, stages, tensor), size)
    return [
        max(event.number("allocated"), event.number("variables")) + event.number("gradients")
        for event in run.of_kind("rank")
    ]
