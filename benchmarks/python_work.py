"""What a short step costs besides TensorFlow's calls, in one process."""

import statistics

from benchmarks import processes, results

_LAYERS = 20
"""Dense layers of 64 features, with Adam."""
_MOST_MILLISECONDS = 0.2
_MILLI = 1000


def measure(size: results.Size) -> list[results.Result]:
    """Train, and take the medians of all epochs but the first."""
    steps = size.examples // 4  # so many that what an epoch costs besides does not count
    epochs = processes.script("short_steps", (_LAYERS, steps, size.epochs), size).of_kind("epoch")
    step, outside = (
        _MILLI * statistics.median(epoch.number(name) for epoch in epochs)
        for name in ("step", "outside")
    )
    return [
        results.Result(
            what="work outside of TensorFlow in a step of 20 dense layers, 1 process",
            target=_MOST_MILLISECONDS,
            bound=results.Bound.AT_MOST,
            value=outside,
            unit=" ms",
            detail=f"of a step of {step:.2f} ms; functions, and making and reading"
            " tensors, are TensorFlow's",
        )
    ]
