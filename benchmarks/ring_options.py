"""Whether options of TensorFlow make the sums of two processes faster."""

import json
import statistics
from collections.abc import Mapping

from benchmarks import processes, results

OPTIONS: Mapping[str, Mapping[str, int]] = {
    "the default": {},
    "4 channels": {"channels": 4},
    "whole tensors": {"chunk": -1},
    "chunks of 64 KiB": {"chunk": 1 << 16},
    "2 threads": {"threads": 2},
    "4 threads": {"threads": 4},
}


def measure(size: results.Size) -> list[results.Result]:
    """Sum tensors with each of the options in turns."""
    seconds: dict[str, dict[str, list[float]]] = {}
    names = list(OPTIONS)
    for _ in range(size.repeats):
        for name in names:
            options = json.dumps(OPTIONS[name])
            run = processes.script("ring_sums", (options,), size, 2, pinned=True)
            for event in run.of_kind("summed"):
                sums = seconds.setdefault(event.facts["size"], {})
                sums.setdefault(name, []).append(event.number("seconds"))
        names.reverse()
    return [_row(what, sums) for what, sums in seconds.items()]


def _row(what: str, sums: Mapping[str, list[float]]) -> results.Result:
    medians = {name: statistics.median(values) for name, values in sums.items()}
    default = medians.pop("the default")
    best = min(medians, key=medians.__getitem__)
    others = ", ".join(f"{1000 * value:.2f} ms with {name}" for name, value in medians.items())
    return results.Result(
        f"sum over 2 processes of {what}, the fastest of TensorFlow's options",
        0.9,
        results.Bound.AT_LEAST,
        medians[best] / default,
        " x",
        f"{1000 * default:.2f} ms by default; {others}",
    )
