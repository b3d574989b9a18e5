"""Many jobs, and a large one, from `apply` to their end: time, CPU time and memory."""

import asyncio
import dataclasses
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import results
from benchmarks.operators import arena, contestants, load, usage
from testing.cluster import settings

MANY_TARGET, LARGE_TARGET, CPU_TARGET = 0.9, 0.36, 0.7
SPLIT_TARGET = 1.2
TRAINER: Mapping[str, Any] = {"trainer": {"epochs": 1, "globalBatchSize": 1000}}
SPLIT: Mapping[str, Any] = {
    **TRAINER,
    "strategy": "ModelSplit",
    "mesh": {"data": -1, "stage": 2, "tensor": 2},
}
COLLECT_GARBAGE = "/debug/pprof/heap?gc=1&debug=1"
"""The path at which the API server searches for garbage before it answers."""
SETTLE_SECONDS = 2.0
"""What the API server does after jobs were wiped away is not to burden the next ones."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One run of one operator."""

    pods: float
    """Seconds from `apply` until all pods existed."""
    cpu: float
    """Seconds of the operator's CPU time from `apply` to the end of all jobs."""
    resident: float
    """MB at most."""


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What was measured in turns."""

    ours: list[Sample] = dataclasses.field(default_factory=list)
    theirs: list[Sample] = dataclasses.field(default_factory=list)


def measure(size: results.Size) -> list[results.Result]:
    """Run both operators in turns on one API server, each run in a fresh process."""
    shapes = ((size.jobs, size.replicas), (1, size.large))
    with arena.cluster("benchmark-starts", settings.Light()) as cluster, contestants.mounted():
        for contestant in (contestants.OURS, contestants.THEIRS):
            contestant.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            site = contestants.Place(cluster, "benchmark", pathlib.Path(name))
            samples = asyncio.run(_in_turns(site, shapes, size.repeats))
            split = asyncio.run(split_row(site, size))
    rows = [row for shape in shapes for row in compared(*shape, samples[shape])]
    return [*rows, split]


async def _in_turns(
    site: contestants.Place, shapes: Sequence[tuple[int, int]], repeats: int
) -> dict[tuple[int, int], Taken]:
    """Samples by the number of jobs, and of their workers."""
    samples = {shape: Taken() for shape in shapes}

    async def ours(shape: tuple[int, int]) -> None:
        samples[shape].ours.append(await sample(contestants.OURS, site, *shape))

    async def theirs(shape: tuple[int, int]) -> None:
        samples[shape].theirs.append(await sample(contestants.THEIRS, site, *shape))

    turns = [ours, theirs]
    for contestant in (contestants.OURS, contestants.THEIRS):
        await sample(contestant, site, 1, 2)  # The API server's caches are warm after it.
    for _ in range(repeats):
        for shape in shapes:
            for turn in turns:
                await turn(shape)
            last = samples[shape]
            print(shape, last.ours[-1], last.theirs[-1], flush=True)
        turns.reverse()  # What one leaves behind in the API server falls to each of them as often.
    return samples


async def _collect_garbage(site: contestants.Place) -> None:
    """Have the API server search for garbage now: whether it does so in a short run is chance.

    Two long runs that are nearly equal have several searches, whose whole number would decide.
    """
    await asyncio.to_thread(site.cluster.run_kubectl, "get", "--raw", COLLECT_GARBAGE)


async def split_row(site: contestants.Place, size: results.Size) -> results.Result:
    """Compare a job whose model is split with one that trains the same way on whole models."""
    plain = dataclasses.replace(contestants.OURS, spec=TRAINER)
    split = dataclasses.replace(contestants.OURS, spec=SPLIT)
    samples: tuple[list[float], list[float]] = ([], [])
    pair = list(zip((split, plain), samples, strict=True))
    for _ in range(size.repeats):
        for contestant, seconds in pair:
            seconds.append((await sample(contestant, site, 1, size.split, to_end=False)).pods)
        pair.reverse()  # What the one leaves behind in the API server burdens the other as often.
    return results.Result(
        f"from apply to all pods, a ModelSplit job of {size.split} replicas",
        SPLIT_TARGET,
        results.Bound.AT_MOST,
        statistics.median(samples[0]) / statistics.median(samples[1]),
        " x",
        f"{_middle(samples[0])} against {_middle(samples[1])} of a job that is not split",
    )


async def sample(
    contestant: contestants.Contestant,
    site: contestants.Place,
    jobs: int,
    workers: int,
    *,
    to_end: bool = True,
) -> Sample:
    """Run an operator and so many jobs of so many workers, by default to their end."""
    names = [f"job-{number}" for number in range(jobs)]
    async with load.opened(site.cluster, site.namespace) as opened:
        work = load.Load(opened, contestant)
        async with contestants.running(contestant, site) as running:
            # Now it does not only say that it is ready.
            await load.Load(opened, dataclasses.replace(contestant, spec={})).start(["warm"], 1)
            if to_end:
                await _collect_garbage(site)
            before = usage.cpu_seconds(running.pid)
            seconds = await work.start(names, workers)
            if to_end:
                await work.run(names, workers)
                await work.end(names, workers)
                await work.until_all(names, "Succeeded")
            cpu = usage.cpu_seconds(running.pid) - before
            resident = usage.most_resident(running.pid)
        await asyncio.to_thread(work.wipe)
        await asyncio.sleep(SETTLE_SECONDS)
    return Sample(seconds, cpu, resident)


def compared(jobs: int, workers: int, samples: Taken) -> list[results.Result]:
    """Rows for the time, and for CPU time with memory."""
    what = f"{jobs} jobs of {workers} pods" if jobs > 1 else f"one job of {workers} pods"
    ours, theirs = samples.ours, samples.theirs
    memory = [statistics.median(sample.resident for sample in side) for side in (ours, theirs)]
    time_target = MANY_TARGET if jobs > 1 else LARGE_TARGET
    return [
        _ratio(
            f"from apply to all pods, {what}", time_target, ours, theirs, lambda sample: sample.pods
        ),
        dataclasses.replace(
            row := _ratio(
                f"CPU time from apply to the end, {what}",
                CPU_TARGET,
                ours,
                theirs,
                lambda sample: sample.cpu,
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
    our_seconds, their_seconds = ([of(sample) for sample in side] for side in (ours, theirs))
    value = statistics.median(our_seconds) / statistics.median(their_seconds)
    detail = f"{_middle(our_seconds)} against {_middle(their_seconds)}"
    return results.Result(what, target, results.Bound.AT_MOST, value, " x", detail)


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s ({min(values):.2f}…{max(values):.2f})"
