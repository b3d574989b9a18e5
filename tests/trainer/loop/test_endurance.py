"""What a long run may not do: grow."""

import pathlib
import time

from testing.trainer import launch, reference
from testing.trainer import runs as trainings

GROWTH = 40
"""Threads that TensorFlow may still start after the first hundred steps."""


def threads(pid: int) -> int:
    """The number of a process's threads, 0 once it has ended."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith("Threads:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} has no threads")


def test_steps_leave_no_threads_behind(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {"module": "mlp.py", "steps": 500, "globalBatchSize": 8}
    environments = launch.environments(tmp_path, reference.MODELS, trainer, processes=2)
    with runs.group(environments) as group:
        group.wait_for_output(0, "  epoch 3  ")
        chief = group.processes[0]
        counts = [threads(chief.pid)]
        while chief.poll() is None:
            counts.append(threads(chief.pid))
            time.sleep(0.05)
        ended = group.wait()
    assert [process.code for process in ended] == [0, 0], ended
    assert max(counts) <= counts[0] + GROWTH, counts
