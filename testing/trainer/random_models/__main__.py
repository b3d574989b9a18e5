"""Runs random jobs, or one of them."""

import argparse
import pathlib
import sys
from collections.abc import Sequence

DEFAULT_SEED = 1


def main(arguments: Sequence[str]) -> int:
    """Run jobs; returns 1 if one of them shows a fault of the trainer."""
    parser = argparse.ArgumentParser(prog="python -m testing.trainer.random_models")
    parser.add_argument("--jobs", type=int, default=50, help="how many jobs there are in all")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED, help="what jobs follow from")
    parser.add_argument("--parallel", type=int, default=2, help="models that run at a time")
    parser.add_argument(
        "--verify",
        choices=["Auto", "Always", "Off"],
        default="Auto",
        help="whether the referee checks the jobs too; without it they take less time",
    )
    parser.add_argument("--resume", type=pathlib.Path, help="the file to resume from, or to begin")
    parser.add_argument("--again", action="store_true", help="run the failures of the file again")
    parser.add_argument("--job", help="print the model file of a job, such as 12.0")
    parser.add_argument("--shrink", help="make the failure of a job, such as 12.0, small")
    options = parser.parse_args(arguments)
    from testing.trainer.random_models import commands  # a forked process imports this module

    return commands.run(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
