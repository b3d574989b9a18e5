"""What processes send each other for layers that are split, against the formula of the plan."""

import os
import pathlib
import tempfile
import time

from benchmarks import processes, results
from testing.trainer import launch
from tfparallel.compare import network_usage
from tfparallel_trainer.contract import environment, outputs

_RANKS = 2
_FROM, _TO = 5, 105
"""The steps between which bytes are counted; the first ones meet, too."""


def measure(size: results.Size) -> list[results.Result]:
    """Count what goes over the loopback interface."""
    batch = size.batch // 2
    run = processes.script("planned_bytes", (batch, _RANKS), size)
    planned = run.of_kind("planned")[0].number("bytes")
    sent = _sent(size, batch) / (_TO - _FROM)
    return [
        results.Result(
            what=f"bytes sent in a step, dense layers on tensor {_RANKS}, over the formula's",
            target=1.05,
            bound=results.Bound.AT_MOST,
            value=sent / planned,
            unit=" x",
            detail=f"{sent / 1e6:.2f} MB over TCP, all headers of messages included, against "
            f"{planned / 1e6:.2f} MB",
        )
    ]


def _sent(size: results.Size, batch: int) -> int:
    """Bytes that all processes send between two steps."""
    settings: dict[str, object] = {
        "module": "layers.py",
        "steps": _TO + 5,
        "globalBatchSize": batch,
    }
    meter = network_usage.NetworkMeter(os.getpid())
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environments = launch.environments(
            folder,
            processes.MODELS,
            settings,
            processes=_RANKS,
            strategy="ModelSplit",
            mesh={"tensor": _RANKS},
            more={environment.STEP_LOG: "1"},
        )
        with processes.group(processes.TRAINER, environments, size, folder) as running:
            counts = []
            for step in (_FROM, _TO):
                while _steps(folder / "output") < step and running[0].poll() is None:
                    time.sleep(0.001)
                usage = meter.read()
                counts.append(0 if usage is None else usage.bytes)
            processes.finished(running, folder)
    return counts[1] - counts[0]


def _steps(output: pathlib.Path) -> int:
    log = output / outputs.STEP_LOG
    return log.read_text().count(f'"{outputs.StepEvent.STEP}"') if log.exists() else 0
