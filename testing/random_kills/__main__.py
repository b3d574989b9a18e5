"""Runs a campaign."""

import argparse
import contextlib
import functools
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from testing.random_kills import campaign_run, kills, on_pods, on_processes

Run = Callable[[pathlib.Path, str, Sequence[kills.Kill]], campaign_run.CampaignRun]


def main(arguments: Sequence[str]) -> int:
    """Run a campaign; returns 1 if a run shows a fault."""
    parser = argparse.ArgumentParser(prog="python -m testing.random_kills")
    parser.add_argument("--strategy", choices=campaign_run.STRATEGIES, required=True)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; then it counts up")
    parser.add_argument("--pods", action="store_true", help="on a cluster; pods are killed, too")
    options = parser.parse_args(arguments)
    victims = list(kills.Victim) if options.pods else kills.ON_PROCESSES
    strategy, failed, killed, attempts = options.strategy, 0, 0, 0
    with tempfile.TemporaryDirectory() as name, _runner(pods=options.pods) as run:
        folder = pathlib.Path(name)
        undisturbed = run(folder / "undisturbed", strategy, ())
        print(f"{strategy}: undisturbed in {undisturbed.seconds:.1f} s", flush=True)
        for seed in range(options.seed, options.seed + options.runs):
            drawn = kills.draw(seed, undisturbed.seconds, victims)
            disturbed = run(folder / str(seed), strategy, drawn)
            problems = [*disturbed.problems]
            if strategy in campaign_run.SYNCHRONOUS and not problems:
                problems += campaign_run.compare(undisturbed, disturbed)
            killed, attempts = killed + disturbed.killed, attempts + disturbed.attempts
            failed += bool(problems)
            print(
                f"seed {seed}: {disturbed.killed} kills, {disturbed.attempts} attempts,"
                f" {disturbed.seconds:.1f} s: {'; '.join(problems) or 'equal'}",
                flush=True,
            )
            shutil.rmtree(folder / str(seed))
    print(f"{options.runs} runs, {killed} kills, {attempts} attempts: {failed} failed")
    return int(failed > 0)


@contextlib.contextmanager
def _runner(*, pods: bool) -> Iterator[Run]:
    if not pods:
        yield on_processes.run
        return
    with on_pods.namespaces() as make:
        yield functools.partial(on_pods.run, make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
