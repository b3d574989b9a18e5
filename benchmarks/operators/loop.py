"""How long the event loop is blocked while many jobs, and a large one, run to their end."""

import asyncio
import json
import pathlib
import tempfile

from benchmarks import results
from benchmarks.operators import arena, contestants, starts, steady
from testing.cluster import settings


def measure(size: results.Size) -> list[results.Result]:
    """Run the jobs once, for what is measured would be the same in most runs."""
    with arena.cluster("benchmark-loop", settings.Light()) as cluster:
        contestants.OURS.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            place = contestants.Place(cluster, "benchmark", pathlib.Path(name))
            return asyncio.run(rows(place, size))


async def rows(place: contestants.Place, size: results.Size) -> list[results.Result]:
    """Measure on a cluster without nodes."""
    found = []
    for jobs, workers in ((size.jobs, size.replicas), (1, size.large)):
        report = place.folder / f"{jobs}.json"
        await starts.sample(contestants.watched(report), place, jobs, workers)
        what = f"{jobs} jobs of {workers} pods run" if jobs > 1 else f"one of {workers} runs"
        found.append(steady.blocks(what, json.loads(report.read_text())))
    return found
