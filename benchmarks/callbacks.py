"""What callbacks that look at batches cost where two devices train."""

import collections

from benchmarks import processes, results
from tfparallel_trainer.contract import environment

_KINDS = (
    ("reads", "that reads the logs", 1.1),
    ("rate", "that sets the learning rate", 2.0),
    ("tensorboard", "such as TensorBoard's", 1.5),
)
_LAYERS = 20
"""Dense layers of 64 features, with Adam: 122 variables."""


def measure(size: results.Size) -> list[results.Result]:
    """Train without such a callback and with one of each kind, in turns in one process."""
    run = processes.script(
        "callback_steps",
        (_LAYERS, size.steps, size.repeats),
        size,
        more={environment.CPU_DEVICES: "2"},
    )
    seconds = collections.defaultdict[str, list[float]](list)
    for event in run.of_kind("steps"):
        seconds[event.facts["kind"]] += event.facts["seconds"]
    return [
        results.ratio(
            f"step of 122 variables with a callback of batches {what}, 2 devices",
            target,
            seconds[kind],
            seconds["none"],
            "a step without",
        )
        for kind, what, target in _KINDS
    ]
