"""From the start of a process to the end of its first step, against a script that does no more."""

from benchmarks import processes, results, steps
from tfparallel_trainer.contract.outputs import TrainEvent


def measure(size: results.Size) -> list[results.Result]:
    """Start the trainer and the scripts in turns."""
    loop = ("MultiWorkerMirrored", 0, size.batch)
    sides = steps.in_turns(
        lambda: _trainer(size, 1),
        lambda: _first(processes.script("keras_fit", (0, size.batch), size), "epoch"),
        size.repeats,
    )
    two = steps.in_turns(
        lambda: _trainer(size, 2),
        lambda: _first(processes.script("strategy_loop", loop, size, 2), "epoch"),
        size.repeats,
    )
    return [
        results.ratio("start to the first step, 1 process", 1.2, *sides, "Keras' fit"),
        results.ratio("start to the first step, 2 processes", 1.2, *two, "a minimal loop"),
    ]


def _trainer(size: results.Size, count: int) -> list[float]:
    settings: dict[str, object] = {
        "module": "cnn.py",
        "steps": 1,
        "globalBatchSize": size.batch,
    }
    return _first(processes.trainer(settings, size, processes=count), TrainEvent.FIRST_STEP)


def _first(run: processes.Run, kind: str) -> list[float]:
    return [run.of_kind(kind)[0].moment - run.started]
