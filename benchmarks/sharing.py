"""How much memory the start takes while replicas get the first one's state."""

import statistics

from benchmarks import processes, results

_WIDTHS = 2.5
"""Of the model, in widths of the models that are split: its state is ten buckets."""
_LEAST_WIDTH = 512


def measure(size: results.Size) -> list[results.Result]:
    """Start two processes again and again."""
    width = max(_LEAST_WIDTH, int(_WIDTHS * size.width))
    runs = [processes.script("share_memory", (width,), size, 2) for _ in range(size.repeats)]
    shared = [run.of("shared")[0] for run in runs]
    most, state = statistics.median(event.number("more") for event in shared), shared[0]
    return [
        results.Result(
            what="memory that the start takes besides the state of training, 2 processes",
            target=1.0,
            bound=results.Bound.AT_MOST,
            value=most / state.number("bytes"),
            unit=" x",
            detail=f"{most / 1e6:.0f} MB for a state of {state.number('bytes') / 1e6:.0f} MB; "
            "buckets of 64 MiB, whatever the state",
        )
    ]
