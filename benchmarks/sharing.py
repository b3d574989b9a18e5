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
    shared = [run.of_kind("shared")[0] for run in runs]
    more = [event.number("more") / 1e6 for event in shared]
    state = shared[0].number("bytes") / 1e6
    return [
        results.Result(
            what="memory that the start takes besides the state of training, 2 processes",
            target=700.0,
            bound=results.Bound.AT_MOST,
            value=statistics.median(more),
            unit=" MB",
            detail=f"{min(more):.0f}…{max(more):.0f} MB in buckets of 64 MiB, for a state of "
            f"{state:.0f} MB",
        )
    ]
