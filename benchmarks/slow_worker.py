"""One worker runs five times slower: examples a second of synchronous and asynchronous training.

The worker is stopped four fifths of the time, in turns of 50 ms, once training has begun.
"""

import pathlib
import statistics
import sys
import tempfile
import time

from benchmarks import processes, results, steps
from testing.trainer import launch
from tfparallel_trainer.contract import outputs

FACTOR = 5
_STEADY = 2
"""Epochs before those that count: the worker is slowed in one of them."""


def measure(size: results.Size) -> list[results.Result]:
    """Run both in turns."""
    both = steps.in_turns(lambda: _asynchronous(size), lambda: _synchronous(size), size.repeats)
    ours, theirs = (statistics.median(rates) for rates in both)
    return [
        results.Result(
            what=f"examples/s, one of 2 workers {FACTOR} times slower: ParameterServer over "
            "MultiWorkerMirrored",
            target=2.0,
            bound=results.Bound.AT_LEAST,
            value=ours / theirs,
            unit=" x",
            detail=f"{ours:.0f} against {theirs:.0f} examples/s",
        )
    ]


def _settings(size: results.Size) -> dict[str, object]:
    return {
        "module": "cnn.py",
        "epochs": size.epochs + _STEADY,
        "globalBatchSize": size.batch,
    }


def _synchronous(size: results.Size) -> list[float]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environments = launch.environments(folder, processes.MODELS, _settings(size), processes=2)
        return _rates(environments, size, folder, slow=1)


def _asynchronous(size: results.Size) -> list[float]:
    """A step is one worker's batch, so that a worker's share of the work is the same."""
    batch = size.batch // 2
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        settings = {**_settings(size), "globalBatchSize": batch}
        environments = launch.with_servers(folder, processes.MODELS, settings)
        slow = list(environments).index("worker-1")
        return _rates(list(environments.values()), size, folder, slow)


def _rates(
    environments: list[dict[str, str]], size: results.Size, folder: pathlib.Path, slow: int
) -> list[float]:
    """Examples a second in each epoch that counts."""
    output = folder / "output"
    command = [sys.executable, "-m", "tfparallel_trainer"]
    with processes.group(command, environments, size, folder) as running:
        while not _trains(output) and running[0].poll() is None:
            time.sleep(0.05)
        with processes.slowed(running[slow], FACTOR):
            running[0].wait()
        processes.finished(running, folder)
    ends: dict[int, float] = {}
    for event in processes.read(output):
        if event.kind == "train":
            ends.setdefault(int(event.number("epoch")), event.moment)
    return [
        size.examples / (ends[epoch] - ends[epoch - 1])
        for epoch in range(_STEADY + 1, size.epochs + _STEADY + 1)
    ]


def _trains(output: pathlib.Path) -> bool:
    log = output / outputs.TRAIN_LOG
    return log.exists() and '"train"' in log.read_text()
