"""`python -m benchmarks.operators.churn --minutes 60` tells whether memory is steady under churn.

Jobs end and begin on KWOK's nodes all the time; memory is printed each minute. It exits with 1
when it has grown by more than a twentieth from the second quarter of the time to the last.
"""

import argparse
import asyncio
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Sequence

from benchmarks.operators import arena, contestants, load, steady, usage
from testing.cluster import settings

GROWTH_LIMIT = 1.05
WORKERS = 10


def main(arguments: Sequence[str]) -> int:
    """Run for so many minutes."""
    parser = argparse.ArgumentParser(prog="benchmarks.operators.churn", description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=100, help="that run at the same time")
    parser.add_argument("--rate", type=float, default=1.0, help="jobs that end in a second")
    options = parser.parse_args(arguments)
    configuration = settings.Light(controllers=True, nodes=steady.NODES)
    with arena.cluster("benchmark-churn", configuration) as cluster:
        contestants.OURS.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            site = contestants.Place(cluster, "benchmark", pathlib.Path(name))
            sizes_in_mb = asyncio.run(
                sizes(site, options.jobs, options.rate, [60.0] * options.minutes)
            )
    growth = grown(sizes_in_mb)
    print(f"{growth:.3f} x from the second quarter to the last; at most {GROWTH_LIMIT} x is steady")
    return int(growth > GROWTH_LIMIT)


async def sizes(
    site: contestants.Place, jobs: int, rate: float, periods: Sequence[float]
) -> list[float]:
    """MB that are resident after each of these periods of seconds."""
    sizes_in_mb = []
    async with load.opened(site.cluster, site.namespace) as opened:
        work = load.Load(opened, contestants.OURS)
        async with contestants.running(contestants.OURS, site) as running:
            churn = steady.Churn(work, running, WORKERS)
            await churn.fill(jobs)
            for number, seconds in enumerate(periods, start=1):
                await churn.go_on(seconds, rate)
                sizes_in_mb.append(usage.resident(running.pid))
                print(f"{number}: {sizes_in_mb[-1]:.1f} MB", flush=True)
    return sizes_in_mb


def grown(sizes_in_mb: Sequence[float]) -> float:
    """The last quarter's median over the second one's."""
    quarter = max(1, len(sizes_in_mb) // 4)
    second = sizes_in_mb[quarter : 2 * quarter] or sizes_in_mb[:1]
    return statistics.median(sizes_in_mb[-quarter:]) / statistics.median(second)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
