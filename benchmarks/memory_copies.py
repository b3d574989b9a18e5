"""What copies of the state in memory cost a gang of two: time of steps, and memory.

Steps are those of one run, in which windows with and without copies alternate. The memory is that
of a replica with its agent, against one that has none and makes no copies.
"""

import asyncio
import itertools
import pathlib
import shutil
import statistics
import tempfile
from collections.abc import Sequence

from benchmarks import processes, restarts, results
from testing.operator import local_jobs

WORKERS = 2
_WINDOW = 600
"""Steps. Several copies are made in a window."""
_WINDOWS = 21
"""The first two are not counted."""
_MODULE = "copied_job.py"
_NEVER = 1_000_000
_POLL_SECONDS = 2.0
"""How often the log is read, which takes time of the steps that are measured."""


def measure(size: results.Size) -> list[results.Result]:
    """Measure windows of steps, and then the memory of gangs with and without agents in turns."""
    smoke = size.repeats == 1
    window, windows = (60, 5) if smoke else (_WINDOW, _WINDOWS)
    steps = asyncio.run(_time_steps(window, windows))
    with_agents: list[int] = []
    without: list[int] = []
    for _ in range(size.repeats):
        with_agents.append(asyncio.run(_measure_memory(window)))
        without.append(asyncio.run(_measure_memory(window, restarts.NEW_PROCESSES)))
    return [_compare_steps(steps), _compare_memory(with_agents, without)]


def _compare_steps(windows: Sequence[float]) -> results.Result:
    """Compare each window without copies with the mean of those before and after it."""
    copying, idle = windows[2::2], windows[3::2]
    ratios = [
        (before + after) / 2 / without
        for before, without, after in zip(copying, idle, copying[1:], strict=False)
    ]
    return results.Result(
        what=f"a step while the state is copied in memory, gang of {WORKERS}",
        target=1.01,
        bound=results.Bound.AT_MOST,
        value=statistics.median(ratios),
        unit=" x",
        detail=f"{results.middle(copying)} against {results.middle(idle)} without copies, in "
        f"windows of one run; the ratios of neighbors are {min(ratios):.3f}…{max(ratios):.3f}",
    )


def _compare_memory(ours: Sequence[int], theirs: Sequence[int]) -> results.Result:
    with_agents, without = (statistics.median(values) for values in (ours, theirs))
    return results.Result(
        what="memory of a replica with an agent, besides the copies",
        target=1.15,
        bound=results.Bound.AT_MOST,
        value=with_agents / without,
        unit=" x",
        detail=f"{with_agents / 1e6:.0f} against {without / 1e6:.0f} MB without an agent; "
        "pages that processes share count once",
    )


async def _time_steps(window: int, windows: int) -> list[float]:
    """Run a job for a number of windows; return the mean seconds of a step in each."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        _, job = _make_job(folder, window)
        # The first window begins with the second step.
        async with restarts.running(folder, job, poll=_POLL_SECONDS) as reach:
            await reach(window * windows + 1)
            moments = dict(restarts.read_steps(folder / restarts.STEP_LOG))
    edges = [moments[step] for step in range(1, window * windows + 2, window)]
    return [(end - begin) / window for begin, end in itertools.pairwise(edges)]


async def _measure_memory(window: int, wrapper: tuple[str, ...] = ()) -> int:
    """Return the bytes of the chief's processes after some steps, without shared memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        mark, job = _make_job(folder, window)
        async with restarts.running(folder, job, wrapper) as reach:
            await reach(window)
            return sum(map(_read_memory, local_jobs.chain(mark, 0)))


def _make_job(folder: pathlib.Path, window: int) -> tuple[str, dict[str, object]]:
    """Return the mark of the processes, and a job that saves no checkpoint."""
    shutil.copy(processes.ROOT / "benchmarks/peers" / _MODULE, folder)
    mark = local_jobs.new_mark()
    job = restarts.make_job(
        mark,
        WORKERS,
        {"BENCHMARK_WINDOW": str(window)},
        module=_MODULE,
        verify="Off",
        epochs=None,
        steps=_NEVER,
        stepsPerExecution=1,
        checkpoint={"claim": "c", "everySteps": _NEVER},
    )
    return mark, job


def _read_memory(pid: int) -> int:
    """Return the bytes of a process, without shared memory. Shared pages count in proportion."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (kilobytes["Pss"] - kilobytes["Pss_Shmem"])
