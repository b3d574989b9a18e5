"""Many jobs, and a large one, from `apply` to their end: time, processor time and memory."""

import asyncio
import dataclasses
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Sequence

from benchmarks import results
from benchmarks.operators import arena, contestants, load, usage
from testing.cluster import settings

TIME_TARGET, CPU_TARGET = 0.5, 1.0
SETTLE_SECONDS = 2.0
"""What the API server does after jobs were wiped away is not to burden the next ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One run of one operator."""

    pods: float
    """Seconds from `apply` until all pods existed."""
    cpu: float
    """Seconds of the operator's processor time from `apply` to the end of all jobs."""
    resident: float
    """MB at most."""


def measure(size: results.Size) -> list[results.Result]:
    """Run both operators in turns on one API server, each run in a fresh process."""
    wanted = [(size.jobs, size.replicas), (1, size.large)]
    with arena.cluster("benchmark-starts", settings.Light()) as cluster, contestants.mounted():
        sides = (contestants.OURS, contestants.THEIRS)
        for one in sides:
            one.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            taken = asyncio.run(_in_turns(cluster, pathlib.Path(name), sides, wanted, size.repeats))
    return [row for jobs, workers in wanted for row in compared(jobs, workers, *taken[jobs])]


async def _in_turns(
    cluster: arena.Cluster,
    folder: pathlib.Path,
    sides: Sequence[contestants.Contestant],
    wanted: Sequence[tuple[int, int]],
    repeats: int,
) -> dict[int, tuple[list[Sample], ...]]:
    """Samples of each side by the number of jobs."""
    taken: dict[int, tuple[list[Sample], ...]] = {jobs: ([], []) for jobs, _ in wanted}
    for one in sides:
        place = contestants.Place(cluster, f"benchmark-{one.kind.lower()}", folder)
        await sample(one, place, 1, 2)  # The API server's caches are warm after it.
    for _ in range(repeats):
        for jobs, workers in wanted:
            for one, samples in zip(sides, taken[jobs], strict=True):
                place = contestants.Place(cluster, f"benchmark-{one.kind.lower()}", folder)
                found = await sample(one, place, jobs, workers)
                print(one.name, jobs, workers, found, flush=True)
                samples.append(found)
    return taken


async def sample(
    one: contestants.Contestant, place: contestants.Place, jobs: int, workers: int
) -> Sample:
    """Run an operator and so many jobs of so many workers to their end."""
    names = [f"job-{number}" for number in range(jobs)]
    async with load.opened(place.cluster, place.namespace) as opened:
        work = load.Load(opened, one)
        async with contestants.running(one, place) as running:
            await work.start(["warm"], 1)  # Now it does not only say that it is ready.
            before = usage.cpu_seconds(running.pid)
            seconds = await work.start(names, workers)
            await work.run(names, workers)
            await work.end(names, workers)
            await work.until_all(names, "Succeeded")
            cpu = usage.cpu_seconds(running.pid) - before
            resident = usage.most_resident(running.pid)
        await asyncio.to_thread(work.wipe)
        await asyncio.sleep(SETTLE_SECONDS)
    return Sample(seconds, cpu, resident)


def compared(
    jobs: int, workers: int, ours: Sequence[Sample], theirs: Sequence[Sample]
) -> list[results.Result]:
    """Rows for the time, and for the processor time beside the memory."""
    what = f"{jobs} jobs of {workers} pods" if jobs > 1 else f"one job of {workers} pods"
    memory = [statistics.median(one.resident for one in side) for side in (ours, theirs)]
    return [
        _ratio(f"from apply to all pods, {what}", TIME_TARGET, ours, theirs, lambda one: one.pods),
        dataclasses.replace(
            row := _ratio(
                f"processor time from apply to the end, {what}",
                CPU_TARGET,
                ours,
                theirs,
                lambda one: one.cpu,
            ),
            detail=f"{row.detail}; resident at most {memory[0]:.0f} MB against {memory[1]:.0f} MB",
        ),
    ]


def _ratio(
    what: str,
    target: float,
    ours: Sequence[Sample],
    theirs: Sequence[Sample],
    of: Callable[[Sample], float],
) -> results.Result:
    own, other = ([of(one) for one in side] for side in (ours, theirs))
    value = statistics.median(own) / statistics.median(other)
    detail = f"{_middle(own)} against {_middle(other)}"
    return results.Result(what, target, results.Bound.AT_MOST, value, " x", detail)


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f}…{max(values):.2f})"
